"Two models, two optimizers, a frozen teacher, one loss. Arguments: steps."
import sys

import torch
from torch import nn

from common import curve, watched, weights

torch.manual_seed(0)

class Generator(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))

class Discriminator(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

make, tell, teacher = Generator(), Discriminator(), nn.Linear(16, 32).requires_grad_(False)
of_make, of_tell = torch.optim.Adam(make.parameters()), torch.optim.Adam(tell.parameters())
loss = nn.BCEWithLogitsLoss()
with watched(make, tell):
    for _ in range(int(sys.argv[1])):
        z = torch.randn(24, 16)
        with torch.no_grad(): real = teacher(z)
        fake = make(z)
        of_tell.zero_grad()
        first = loss(tell(real), torch.ones(24, 1)) + loss(tell(fake.detach()), torch.zeros(24, 1))
        first.backward()
        of_tell.step()
        of_make.zero_grad()
        second = loss(tell(fake), torch.ones(24, 1))
        second.backward()
        of_make.step()
        curve(first, second)
weights(make, tell)
