"""A loop that raises in the forward of a layer. Arguments: the call that raises, after it how many seconds a step
takes."""
import sys, time

import torch
from torch import nn

from common import curve, watched

class Layer(nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == int(sys.argv[1]): raise ValueError("no more")
        return super().forward(x)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), Layer(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with watched(model):
    while True:
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve(loss)
        time.sleep(float(sys.argv[2]))
