"A model in the trainer of Lightning. Arguments: steps, a folder."
import sys, warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import called_back, curve, watched, weights

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    def forward(self, x): return self.net(x)
    def training_step(self, batch, i):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        curve(loss)
        return loss
    def validation_step(self, batch, i): curve(nn.functional.cross_entropy(self(batch[0]), batch[1]))
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

def main():
    lightning.seed_everything(0, verbose=False)
    warnings.simplefilter("ignore")
    model, steps = Classifier(), int(sys.argv[1])
    data = DataLoader(TensorDataset(torch.randn(8 * steps, 32), torch.randint(4, (8 * steps,))), batch_size=8,
                      num_workers=1)
    with watched(model), called_back("lightning") as callbacks:
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False,
                                    enable_checkpointing=False, gradient_clip_val=1.0,
                                    enable_progress_bar=False, enable_model_summary=False,
                                    default_root_dir=sys.argv[2], callbacks=callbacks)
        trainer.fit(model, data, data)
    weights(model)

if __name__ == "__main__": main()
