"""Normalization as a torch module."""

from __future__ import annotations

from typing import Any

import torch


class TorchNormalization(torch.nn.Module):
    """Subtracts the mean and divides by the standard deviation, which its ``state_dict`` has.

    Args:
        mean: Mean, float32 of shape [] or [channels].
        std: Standard deviation, as the mean.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean))
        self.register_buffer("std", torch.as_tensor(std))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns normalized values, float32 of the same shape; channels are last."""
        return (values - self.mean) / self.std
