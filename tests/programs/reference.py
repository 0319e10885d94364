"""An image classifier as a reference script trains it: warm-up and cosine, label smoothing, clipping, autocast, an
average of the weights."""
import sys

import torch
import torchvision
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from common import curve, watched, weights

def evaluate(model, loss_of, data):
    model.eval()
    with torch.inference_mode(): return sum(loss_of(model(x), y) for x, y in data)

def one_epoch(model, average, loss_of, optimizer, schedule, scaler, data):
    model.train()
    for x, y in data:
        with torch.autocast("cpu", dtype=torch.bfloat16): loss = loss_of(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        schedule.step()
        curve(loss, norm, schedule.get_last_lr()[0])

def main():
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v3_small(num_classes=10)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    loss_of, steps = nn.CrossEntropyLoss(label_smoothing=0.1), int(sys.argv[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=5),
                                        CosineAnnealingLR(optimizer, 2 * steps)], [5])
    scaler = torch.amp.GradScaler("cpu")
    data = DataLoader(TensorDataset(torch.randn(4 * steps, 3, 32, 32), torch.randint(10, (4 * steps,))), batch_size=4,
                      shuffle=True,
                      num_workers=1)
    with watched(model):
        for _ in range(2):
            one_epoch(model, average, loss_of, optimizer, schedule, scaler, data)
            curve(evaluate(model, loss_of, data), evaluate(average, loss_of, data))
    weights(model, average)

if __name__ == "__main__": main()
