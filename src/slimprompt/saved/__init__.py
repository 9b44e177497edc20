"""Saved models: a folder with a JSON description and a safetensors file, without pickle.

| module | contents |
|---|---|
| `files` | the two files of a model: checksum, schema, safe replacement, the backbone they belong to |
| `prompt` | saved prompts |
| `head` | saved heads |
| `hub` | saved models on the Hugging Face hub |
"""
