"""Chat templates of families that TRL ships none for, in short: by the rules of their models."""

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOLLM2 = (
    "{% if messages[0].role != 'system' %}"
    "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n"
    "{% endif %}"
) + CHATML
ZEPHYR = (
    "{% for message in messages %}{% if message.role in ['system', 'user', 'assistant'] %}"
    "<|{{ message.role }}|>\n{{ message.content }}</s>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ALTERNATE = (
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
)
MISTRAL_V1 = (
    "<s>{% for message in messages %}" + ALTERNATE + "{% if message.role == 'user' %}"
    "[INST] {{ message.content }} [/INST]"
    "{% else %}{{ message.content }}</s> {% endif %}{% endfor %}"
)
MISTRAL_V2 = (
    "<s>{% for message in messages %}" + ALTERNATE + "{% if message.role == 'user' %}"
    " [INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }}</s>{% endif %}{% endfor %}"
)
LLAMA_2 = (
    "{% for message in messages %}" + ALTERNATE + "{% if message.role == 'user' %}"
    "<s>[INST] {{ message.content.strip() }} [/INST]"
    "{% else %} {{ message.content.strip() }} </s>{% endif %}{% endfor %}"
)
SHORT_TEMPLATES = {
    "chatml": CHATML,
    "smollm2": SMOLLM2,
    "zephyr": ZEPHYR,
    "mistral_v1": MISTRAL_V1,
    "mistral_v2": MISTRAL_V2,
    "llama2": LLAMA_2,
}
