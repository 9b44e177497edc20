"""The table of checks, in the order in which they run."""

from __future__ import annotations

from slimprompt.doctor import machine, numerics, speed, zero_shot
from slimprompt.doctor.check import Check

CHECKS = (
    Check("versions", "Python, slimprompt and the libraries that results depend on", machine.check_versions),
    Check("machine", "system, processor, memory, GPUs and threads", machine.check_devices),
    Check("cache directory", "image features can be stored", machine.check_cache),
    Check("data root", "which benchmarks are present, and how many of their images", machine.check_data),
    Check("OpenAI weights", "which weight files of the paper's backbones are on this machine", machine.check_weights),
    Check("backbone", "the chosen backbone can be loaded on the device", numerics.check_backbone, True),
    Check(
        "text features",
        "class features and gradients equal those of open_clip's full pass on the device",
        numerics.check_text,
        True,
    ),
    Check("kernels", "the hand-written kernels equal the same pass in plain PyTorch", numerics.check_kernels, True),
    Check(
        "training step",
        "one step of the training loop equals the step written out with autograd on the CPU in fp32",
        numerics.check_training,
        True,
    ),
    Check(
        "image features",
        "the feature bank gives the features of the image tower on one image at a time",
        numerics.check_images,
        True,
    ),
    Check("speed", "time of a text step, of an image and of a fit", speed.check_speed, True),
    Check("paper's grid", "time and disk of all runs of the paper", speed.check_grid),
    Check(
        "zero-shot accuracy",
        "OpenAI's weights give the published accuracy on benchmarks that are present",
        zero_shot.check_zero_shot,
        True,
    ),
)
