"Modules of functions, for tests that need a module and no class of its own."
from torch import nn

class Call(nn.Module):
    def __init__(self, f): super().__init__(); self.f = f
    def forward(self, *args): return self.f(*args)

class Calls(nn.Module):
    "Parts by name, and a function of the module and what it is called with."
    def __init__(self, f, **held):
        super().__init__()
        self.f = f
        for name, value in held.items(): setattr(self, name, value)
    def forward(self, *args): return self.f(self, *args)
