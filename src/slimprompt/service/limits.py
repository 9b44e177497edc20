"""What requests may hold; importing this needs no extra package, so that `slimprompt serve --help` can show it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Limits of the service; each field is an option of `slimprompt serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_upload_mb: float = Field(20, gt=0, description="Largest request, in MB")
    max_upload_seconds: float = Field(30, gt=0, description="Longest time for sending a request")
    max_images: int = Field(32, ge=1, description="Images per request")
    max_megapixels: float = Field(
        25, gt=0, description="Pixels per image, in millions; a quarter of that for 16-bit and float greyscale"
    )
    max_request_megapixels: float = Field(
        100, gt=0, description="Pixels of all images of a request, in millions; four times that may wait to be decoded"
    )
    max_classes: int = Field(200, ge=1, description="Class names that a request may give")
    max_waiting: int = Field(
        256, ge=1, description="Images of all requests that may be decoded, wait or be encoded at once"
    )
    batch_size: int = Field(32, ge=1, description="Images that the image tower encodes at once")
