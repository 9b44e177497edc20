"""`slimprompt backbones`."""

import open_clip

from slimprompt.clip.architectures import EMBEDDED, model_config, prompt_support


def test_every_model_has_a_row(run):
    """With its pass, the reason and the tags of its weights."""
    result = run("backbones")
    assert result.returncode == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for name in (*EMBEDDED, *open_clip.list_models()):
        support = prompt_support(model_config(name))
        assert support.text_pass in rows[name] and support.reason in rows[name]
        assert ("slimprompt[hf]" in rows[name]) == bool(support.missing)
    assert "shared prefix" in rows["ViT-B-16"] and "laion2b_s34b_b88k" in rows["ViT-B-16"]
    assert "Hugging Face text tower" in rows["roberta-ViT-B-32"]
    assert "fast: the prompt is computed once for all classes" in result.stdout


def test_search(run):
    result = run("backbones", "mobileclip2-s")
    assert {line.split()[0] for line in result.stdout.splitlines() if "dfndr2b" in line} == {
        f"MobileCLIP2-S{size}" for size in (0, 2, 3, 4)
    }
    failed = run("backbones", "no-such-model")
    assert failed.returncode == 2 and "no backbone has 'no-such-model' in its name" in failed.stderr
