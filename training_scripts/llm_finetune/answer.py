"""Print the answer of a model, or of an adapter on its model:

python answer.py FOLDER "What does `os.path.join` do in Python?"
"""

import os
import sys
from pathlib import Path

if len(sys.argv) != 3:
    sys.exit(__doc__)
folder, question = sys.argv[1:]
if Path(folder).is_dir():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the imports: nothing is looked up

import transformers
from peft import AutoPeftModelForCausalLM

transformers.utils.logging.disable_progress_bar()
is_adapter = Path(folder, "adapter_config.json").is_file()
kind = AutoPeftModelForCausalLM if is_adapter else transformers.AutoModelForCausalLM
model, tokenizer = kind.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
asked = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
made = model.generate(**asked, max_new_tokens=60, do_sample=False)
print(tokenizer.decode(made[0, asked["input_ids"].shape[1] :], skip_special_tokens=True))
