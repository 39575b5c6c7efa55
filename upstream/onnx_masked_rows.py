"""A query that may look at nothing gives zeros in torch, and something else in ONNX.

Padding on the left of a prompt makes such queries.

Where: torch.onnx.export(dynamo=True), scaled_dot_product_attention
Fails with: torch 2.13.0 and 2.15.0 with onnxscript 0.7.2
Thread: https://github.com/pytorch/pytorch/issues/103749 (zeros for such rows in torch)
In onlooker: `targets.masked_rows`
"""

import contextlib
import io
import warnings

import torch

warnings.simplefilter("ignore")


class Attention(torch.nn.Module):
    def forward(self, x, mask):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


torch.manual_seed(0)
x = torch.randn(1, 1, 3, 4)
mask = torch.tensor([[False, False, False], [True, True, False], [True, True, True]])
program = torch.export.export(Attention(), (x, mask))
with contextlib.redirect_stdout(io.StringIO()):
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
(given,) = converted(x, mask)
first = given[0, 0, 0]
if torch.equal(first, torch.zeros(4)):
    print("repaired: the row is zeros")
else:
    print("still there: the row of zeros is", [round(value, 3) for value in first.tolist()])
