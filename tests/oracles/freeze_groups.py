"""Print the numbers of `tests/test_mup.py` and `tests/test_by_path.py`, from microsoft/mup and timm.

    pip install numpy==2.4.6 torch==2.13.0 mup==1.0.0 timm==1.0.31
    python tests/oracles/freeze_groups.py

timm imports torchvision, which is not needed: an empty module may stand in for it.
"""

import importlib
from typing import Any

import numpy as np

torch: Any = importlib.import_module("torch")
mup: Any = importlib.import_module("mup")
nn = torch.nn


def model(width: int) -> Any:
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), mup.MuReadout(width, 2))


def losses(name: str, width: int) -> list[float]:
    """The losses before each step, from weights that are computed from integers, in float64."""
    net = model(width)
    for k, (i, columns) in enumerate([(0, 3), (2, width), (4, width)]):
        rows = net[i].weight.shape[0]
        w = np.sin(1.0 + k + np.arange(rows * columns) * 1.7).reshape(rows, columns) / np.sqrt(columns)
        net[i].weight.data[:] = torch.tensor(w)
        net[i].bias.data[:] = torch.tensor(np.cos(2.0 + k + np.arange(rows) * 1.3) / np.sqrt(columns))
    mup.set_base_shapes(net, model(4), delta=model(8))
    adam = name == "adam"
    optimizer = mup.MuAdam(net.parameters(), lr=0.02) if adam else mup.MuSGD(net.parameters(), lr=0.05, momentum=0.9)
    x = torch.tensor(np.sin(np.arange(15) * 0.9).reshape(5, 3))
    y = torch.tensor(np.cos(np.arange(10) * 0.7).reshape(5, 2))
    found = []
    for _ in range(4):
        loss = ((net(x) - y) ** 2).mean()
        found.append(float(f"{loss.item():.10g}"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def multipliers() -> dict[str, float]:
    """The `lr_scale` of every parameter of a small vision transformer."""
    timm: Any = importlib.import_module("timm")
    net = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, num_classes=3, embed_dim=8, depth=3, num_heads=2
    )
    names = {id(p): name for name, p in net.named_parameters()}
    groups = importlib.import_module("timm.optim").param_groups_layer_decay(net, weight_decay=0.05, layer_decay=0.75)
    return {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    for name in ("adam", "sgd"):
        for width in (4, 16):
            print(name, width, losses(name, width))
    print(multipliers())
