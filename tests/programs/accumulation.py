"A loop with gradient accumulation, and a data loader with worker processes. Arguments: steps, workers."
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from common import curve, watched, weights

class Data(Dataset):
    def __len__(self): return 8 * int(sys.argv[1])
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return (torch.randn(32, generator=g), torch.randint(4, (), generator=g),
                hasattr(nn.Module.__call__, "__wrapped__"))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = (nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2)),
                                nn.Linear(64, 4))
    def forward(self, x): return self.head(self.body(x))

def main():
    torch.manual_seed(0)
    model, loss_of = Net(), nn.CrossEntropyLoss()
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=0.01), False
    with watched(model):
        for i, (x, y, patched) in enumerate(DataLoader(Data(), batch_size=8, num_workers=int(sys.argv[2]))):
            loss = loss_of(model(x), y) / 4
            loss.backward()
            if i % 4 == 3: optimizer.step(); optimizer.zero_grad()
            curve(loss)
            seen |= bool(patched.any())
    print("workers see a module's call changed:", seen if int(sys.argv[2]) else False)
    weights(model)

if __name__ == "__main__": main()
