"""CoOp: the same training, proven against a plain implementation of it, and its checkpoints."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from slimprompt import FeatureBank, InputError, PromptClassifier, Recipe, load_backbone, start_prompt
from slimprompt.coop import import_coop, read_coop_checkpoint
from slimprompt.images.files import open_image
from slimprompt.images.views import train_view
from slimprompt.methods.prompt_learning import learn_prompts
from slimprompt.methods.task import Task
from slimprompt.seeds import stream_seed
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.evaluation import accuracy
from tests.conftest import TINY, draw

COLOURS = ["red", "green", "blue", "dark orange", "light_sea_green"]


class PlainCoOp(nn.Module):
    """CoOp's model as its paper tells it: prefix, context and suffix embeddings of every class, the whole tower, every step."""

    def __init__(self, clip, tokenizer, class_names, context):
        super().__init__()
        n_ctx = len(context)
        texts = [" ".join(["X"] * n_ctx) + " " + name.replace("_", " ") + "." for name in class_names]
        self.tokens = tokenizer(texts)
        self.clip, self.ctx = clip, nn.Parameter(context.clone())
        with torch.no_grad():
            embedding = clip.token_embedding(self.tokens)
        self.prefix, self.suffix = embedding[:, :1], embedding[:, 1 + n_ctx :]

    def forward(self, images):
        context = self.ctx.unsqueeze(0).expand(len(self.tokens), -1, -1)
        x = torch.cat([self.prefix, context, self.suffix], dim=1) + self.clip.positional_embedding
        x = self.clip.ln_final(self.clip.transformer(x, attn_mask=self.clip.attn_mask))
        text = x[torch.arange(len(x)), self.tokens.argmax(-1)] @ self.clip.text_projection
        with torch.no_grad():
            features = self.clip.encode_image(images)
        features = features / features.norm(dim=-1, keepdim=True)
        text = text / text.norm(dim=-1, keepdim=True)
        return self.clip.logit_scale.exp() * features @ text.t()


def test_dense_training_is_coop_s(tiny, tmp_path):
    """60 steps: same start, same images in the same order, same random views; losses within 1e-4, same final accuracy."""
    paths, labels = [], []
    for label, colour in enumerate(COLOURS):
        for number in range(9):
            paths.append(
                draw(
                    tmp_path / colour / f"{number}.png",
                    colour.replace("dark orange", "orange").replace("light_sea_green", "teal"),
                    number,
                )
            )
            labels.append(label)
    recipe = Recipe(epochs=30, batch_size=20, lr=0.02)
    seed = 4
    prompt = start_prompt("dense", width=32, seed=seed, n_ctx=6)
    context = prompt().detach().clone()
    bank = FeatureBank(tiny)
    (learned,) = learn_prompts(Task(bank, paths, labels, tuple(COLOURS), seed), [prompt], recipe)
    curve = learned.curve

    plain = PlainCoOp(load_backbone(TINY, seed=0, device="cpu").model, tiny.tokenizer, COLOURS, context)
    optimizer = torch.optim.SGD([plain.ctx], lr=0.02, momentum=0.9, weight_decay=5e-4)
    order = torch.Generator().manual_seed(stream_seed(seed, "order"))
    opened, target = [open_image(path) for path in paths], torch.tensor(labels)
    steps = 0
    for epoch in range(30):
        for group in optimizer.param_groups:
            group["lr"] = 1e-5 if epoch == 0 else 0.01 * (1 + np.cos(np.pi * (epoch - 1) / 30))
        losses = []
        permutation = torch.randperm(45, generator=order)
        for batch in (permutation[:20], permutation[20:40]):
            seeds = [stream_seed(0, "view", f"{seed}/{epoch}", bank._hash(paths[i])) for i in batch]
            images = torch.stack([train_view(opened[i], tiny.preprocess, s) for i, s in zip(batch, seeds, strict=True)])
            loss = F.cross_entropy(plain(images), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1
        assert curve[epoch].loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert steps >= 50
    torch.testing.assert_close(prompt().detach(), plain.ctx.detach(), rtol=1e-3, atol=1e-4)
    test = torch.stack([tiny.eval_view(image) for image in opened])
    theirs = 100 * (plain(test).argmax(1) == target).double().mean().item()
    text = SharedPrefixTextEncoder(tiny, COLOURS, 6)(prompt())
    assert accuracy(bank.features(paths), text, target) == pytest.approx(theirs)


@pytest.fixture
def checkpoint(tiny, tmp_path):
    """As Dassl writes it: the prompt learner's state, an optimizer, and a scheduler that holds live objects."""
    context = torch.randn(4, 32)
    plain = PlainCoOp(tiny.model, tiny.tokenizer, COLOURS, context)
    optimizer = torch.optim.SGD([plain.ctx], lr=0.002)
    state = {
        "state_dict": {"ctx": context.half(), "token_prefix": plain.prefix.half(), "token_suffix": plain.suffix.half()},
        "epoch": 50,
        "optimizer": optimizer.state_dict(),
        "scheduler": {"successor": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50), "last_epoch": 50},
        "val_result": np.float64(71.5),
    }
    torch.save(state, tmp_path / "model.pth.tar-50")
    return tmp_path / "model.pth.tar-50", context.half().float()


def test_import(tiny, checkpoint, photos, tmp_path):
    path, context = checkpoint
    classifier = import_coop(path, tiny)
    assert classifier.classes_.tolist() == [name.replace("_", " ") for name in COLOURS]
    assert torch.equal(classifier.prompt_().detach(), context)
    saved = classifier.save(tmp_path / "prompt")
    images = sorted(photos.glob("*/*.png"))
    assert np.array_equal(PromptClassifier.load(saved).predict(images), classifier.predict(images))
    named = import_coop(path, tiny, ["a", "b", "c", "d", "e"])
    assert named.classes_.tolist() == list("abcde")


def test_code_in_a_coop_checkpoint_is_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm-was-done"), "w"))

    torch.save({"state_dict": {"ctx": torch.zeros(4, 32)}, "optimizer": Harm()}, tmp_path / "x.tar")
    assert read_coop_checkpoint(tmp_path / "x.tar").context.shape == (4, 32)
    assert not (tmp_path / "harm-was-done").exists()


def test_what_cannot_be_imported(tiny, checkpoint, tmp_path):
    with pytest.raises(InputError, match="5 classes, but 2 names"):
        import_coop(checkpoint[0], tiny, ["a", "b"])
    torch.save({"state_dict": {"ctx": torch.zeros(3, 4, 32)}}, tmp_path / "csc")
    with pytest.raises(InputError, match="context per class"):
        read_coop_checkpoint(tmp_path / "csc")
    torch.save({"state_dict": {"weight": torch.zeros(3)}}, tmp_path / "other")
    with pytest.raises(InputError, match="expected a tensor 'ctx'.*found weight"):
        read_coop_checkpoint(tmp_path / "other")
    torch.save({"state_dict": {"ctx": torch.zeros(4, 7)}}, tmp_path / "narrow")
    with pytest.raises(InputError, match="width 7"):
        import_coop(tmp_path / "narrow", tiny, ["a", "b"])
    torch.save({"state_dict": {"ctx": torch.zeros(4, 32)}}, tmp_path / "bare")
    with pytest.raises(InputError, match="give their names"):
        import_coop(tmp_path / "bare", tiny)
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a readable PyTorch checkpoint"):
        read_coop_checkpoint(tmp_path / "junk")
