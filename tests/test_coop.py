"""CoOp: the same training, proven against a plain implementation of it, and its checkpoints."""

import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler

from slimprompt import FeatureBank, InputError, PromptClassifier, Recipe, load_backbone, start_prompt
from slimprompt.coop import import_coop, read_coop_checkpoint
from slimprompt.images.decode import open_image
from slimprompt.images.views import train_view
from slimprompt.methods.prompt import learn_prompts
from slimprompt.methods.task import Task
from slimprompt.saved import read_model
from slimprompt.seeds import stream_seed
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.evaluation import accuracy
from tests.clip.test_weights import Malicious
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
            seeds = [stream_seed(0, "view", f"{seed}/{epoch}", bank.hashes([paths[i]])[0]) for i in batch]
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


class PromptLearner(nn.Module):
    """State of CoOp's prompt learner: `ctx` and two buffers that are views of the embeddings of all tokens."""

    def __init__(self, plain, dtype):
        super().__init__()
        n_ctx = len(plain.ctx)
        embedding = plain.clip.token_embedding(plain.tokens).detach().to(dtype)
        self.ctx = nn.Parameter(plain.ctx.detach().to(dtype))
        self.register_buffer("token_prefix", embedding[:, :1, :])
        self.register_buffer("token_suffix", embedding[:, 1 + n_ctx :, :])


class ConstantWarmupScheduler(LRScheduler):
    """As Dassl writes it: holds its successor, which holds the live optimizer."""

    def __init__(self, optimizer, successor, warmup_epoch, cons_lr):
        self.successor, self.warmup_epoch, self.cons_lr = successor, warmup_epoch, cons_lr
        super().__init__(optimizer, -1)

    def get_lr(self):
        if self.last_epoch >= self.warmup_epoch:
            return self.successor.get_last_lr()
        return [self.cons_lr for _ in self.base_lrs]

    def step(self, epoch=None):
        if self.last_epoch >= self.warmup_epoch:
            self.successor.step(epoch)
            self._last_lr = self.successor.get_last_lr()
        else:
            super().step(epoch)


def train_and_save(tiny, path, *, names=COLOURS, dtype=torch.float32, val_result=None):
    """Train CoOp's prompt learner for two epochs and save it as Dassl does."""
    plain = PlainCoOp(tiny.model, tiny.tokenizer, names, torch.randn(4, 32))
    learner = PromptLearner(plain, dtype)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.002, momentum=0.9, weight_decay=5e-4)
    successor = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50.0)
    scheduler = ConstantWarmupScheduler(optimizer, successor, 1, 1e-5)
    for _ in range(2):
        plain.ctx = nn.Parameter(learner.ctx.detach().float())
        F.cross_entropy(plain(torch.randn(2, 3, 32, 32)), torch.tensor([0, 1])).backward()
        learner.ctx.grad = plain.ctx.grad.to(dtype)
        optimizer.step()
        scheduler.step()
    state = {
        "state_dict": learner.state_dict(),
        "epoch": 2,
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "val_result": val_result,
    }
    torch.save(state, path)
    return learner.ctx.detach().float()


@pytest.fixture
def checkpoint(tiny, tmp_path):
    return tmp_path / "model.pth.tar-2", train_and_save(tiny, tmp_path / "model.pth.tar-2", dtype=torch.float16)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("model.pth.tar-2", {}),
        ("model.pth.tar-2", {"dtype": torch.float16}),
        ("model-best.pth.tar", {"val_result": np.float64(71.5)}),
    ],
)
def test_checkpoints_of_coop_s_training_are_imported(tiny, photos, tmp_path, name, options):
    context = train_and_save(tiny, tmp_path / name, **options)
    classifier = import_coop(tmp_path / name, tiny)
    assert classifier.classes_.tolist() == [colour.replace("_", " ") for colour in COLOURS]
    assert torch.equal(classifier.prompt_().detach(), context)
    saved = classifier.save(tmp_path / "prompt")
    images = sorted(photos.glob("*/*.png"))
    assert np.array_equal(PromptClassifier.load(saved).predict(images), classifier.predict(images))


def test_an_imported_prompt_says_where_it_comes_from(tiny, checkpoint, tmp_path):
    saved = import_coop(checkpoint[0], tiny).save(tmp_path / "a")
    description = read_model(saved).description
    assert description.imported == {"from": "model.pth.tar-2", "epoch": 2}
    assert description.recipe is None
    assert description.seed is None
    again = PromptClassifier.load(saved).with_classes(description.class_names).save(tmp_path / "b")
    assert again.read_bytes() == saved.read_bytes()


def test_names_are_compared_by_their_tokens(tiny, tmp_path):
    names = ["707-320", "shiba_inu", "C-130"]
    train_and_save(tiny, tmp_path / "x", names=names)
    assert import_coop(tmp_path / "x", tiny).classes_.tolist() == ["7 0 7 - 3 2 0", "shiba inu", "c - 1 3 0"]
    assert import_coop(tmp_path / "x", tiny, names).classes_.tolist() == names
    with pytest.raises(InputError, match="class 2 of .* is 'shiba inu', but 'beagle' was given"):
        import_coop(tmp_path / "x", tiny, ["707-320", "beagle", "C-130"])


def test_tokens_of_another_model(tiny, checkpoint):
    with pytest.raises(InputError, match="do not belong to this model"):
        import_coop(checkpoint[0], load_backbone(TINY, seed=1, device="cpu"))


def test_code_in_a_coop_checkpoint_is_not_executed(tmp_path):
    state = {"state_dict": {"ctx": torch.zeros(4, 32)}, "optimizer": Malicious(tmp_path / "executed")}
    torch.save(state, tmp_path / "x.tar")
    assert read_coop_checkpoint(tmp_path / "x.tar").context.shape == (4, 32)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("entry", ["x/data.pkl", "x/data/0"])
def test_a_compressed_entry_of_gigabytes_is_not_read(tmp_path, monkeypatch, entry):
    """100 KB that inflate to 0.1 GB."""
    with zipfile.ZipFile(tmp_path / "x.tar", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        if entry != "x/data.pkl":
            archive.writestr("x/data.pkl", pickle.dumps({}))
        archive.writestr(entry, bytes(10**8))
    read = zipfile.ZipFile.open

    def read_others(archive, name, *arguments, **options):
        assert getattr(name, "filename", name) != entry
        return read(archive, name, *arguments, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", read_others)
    with pytest.raises(InputError, match="compressed and would take 0.1 GB"):
        read_coop_checkpoint(tmp_path / "x.tar")


def test_a_context_larger_than_its_storage_is_refused(tmp_path):
    torch.save({"state_dict": {"ctx": torch.zeros(1).expand(10**6, 10**6)}}, tmp_path / "x")
    with pytest.raises(InputError, match="not a readable PyTorch checkpoint .*larger than its 1 stored values"):
        read_coop_checkpoint(tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {"ctx": torch.zeros(3, 4, 32)}}, "context per class"),
        ({"state_dict": {"weight": torch.zeros(3)}}, "expected a tensor 'ctx'.*found weight"),
        ([torch.zeros(3)], "expected a tensor 'ctx'.*found a list"),
        ({"state_dict": {"ctx": torch.zeros(4, 7)}}, "width 7"),
        ({"state_dict": {"ctx": torch.zeros(4, 32)}}, "give their names"),
        (b"junk", "not a readable PyTorch checkpoint"),
    ],
)
def test_what_cannot_be_imported(tiny, tmp_path, content, message):
    path = tmp_path / "x"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(InputError, match=message):
        import_coop(path, tiny, ["a", "b"] if "width" in message else None)


def test_what_was_cut_or_is_in_the_format_before_zip_files_is_refused(tiny, checkpoint, tmp_path):
    torch.save({"ctx": torch.zeros(4, 32)}, tmp_path / "old", _use_new_zipfile_serialization=False)
    (tmp_path / "cut").write_bytes(checkpoint[0].read_bytes()[:3000])
    for name in ("cut", "old"):
        with pytest.raises(InputError, match="not a readable PyTorch checkpoint"):
            read_coop_checkpoint(tmp_path / name)
    with pytest.raises(InputError, match="5 classes, but 2 names"):
        import_coop(checkpoint[0], tiny, ["a", "b"])
