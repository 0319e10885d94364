"A loop on accelerate: prepared objects, accumulated gradients. Arguments: steps."
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import curve, watched, weights

def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
    steps = int(sys.argv[1])
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    data = DataLoader(TensorDataset(torch.randn(8 * steps, 32), torch.randint(4, (8 * steps,))), batch_size=8,
                      shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    with watched(model):
        for x, y in data:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            curve(loss)
    weights(model)

if __name__ == "__main__": main()
