"A language model in the trainer of transformers. Arguments: steps, a folder."
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

from common import called_back, curve, watched, weights

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        ids = torch.randint(97, (16,), generator=torch.Generator().manual_seed(i))
        return dict(input_ids=ids, labels=ids)

def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                                       eos_token_id=0))
    how = TrainingArguments(sys.argv[2], max_steps=int(sys.argv[1]), per_device_train_batch_size=4,
                            gradient_accumulation_steps=2,
                            logging_steps=1, eval_strategy="steps", eval_steps=8, save_strategy="no", report_to=[],
                            use_cpu=True, bf16=True,
                            disable_tqdm=True, seed=0, dataloader_num_workers=1)
    with watched(model), called_back("trainer") as callbacks:
        trainer = Trainer(model, how, train_dataset=Data(), eval_dataset=Data(), callbacks=callbacks)
        trainer.remove_callback(PrinterCallback)         # it prints how long everything took
        trainer.train()
    for log in trainer.state.log_history: curve(*(log[k] for k in ("loss", "grad_norm", "eval_loss") if k in log))
    weights(model)

if __name__ == "__main__": main()
