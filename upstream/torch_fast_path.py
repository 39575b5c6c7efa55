"""`torch.nn.TransformerEncoder` writes zeros at padded positions in eager, and not in an exported program.

Eager takes a fast path with nested tensors; the exported graph has the slow path.

Where: torch.nn.TransformerEncoder
Fails with: torch 2.13.0, 2.15.0
Thread: https://github.com/pytorch/pytorch/issues/86120
In onlooker: `repairs.encoder_padding` writes the zeros into the graph, and
`hypotheses.calls.surroundings` names what is left
"""

import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 1).eval()
x = torch.randn(2, 4, 8)
padding = torch.tensor([[False, False, False, False], [False, False, True, True]])
with torch.no_grad():
    expected = model(x, src_key_padding_mask=padding)
    program = torch.export.export(model, (x,), {"src_key_padding_mask": padding}).module()
    given = program(x, src_key_padding_mask=padding)
steps = min(expected.shape[1], given.shape[1])
difference = (expected[:, :steps] - given[:, :steps]).abs().max().item()
if difference > 1e-4:
    print(f"still there: differs by {difference:.2f}")
else:
    print("repaired: both give the same")
