"""Every example runs as a script, and prints what it is known to print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

#: file -> its whole standard output
PRINTED = {
    "plot_input_observer.py": """\
Observations stored: 3
Dynamic shapes: ({0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)})
Inferred args: (T1s2x6,T1s2x6)

Observations stored (linear): 3
Dynamic shapes (linear): {'x': {0: DimHint(DYNAMIC)}, 'labels': {0: DimHint(DYNAMIC)}}
Inferred kwargs: dict(x:T1s2x8,labels:T7s2)

Observations stored (masked): 3
Dynamic shapes (masked): {'x': {0: DimHint(DYNAMIC)}, 'mask': {0: DimHint(DYNAMIC)}}
Inferred kwargs: dict(x:T1s2x10,mask:T1s0x10)
""",
    "plot_input_observer_transformers.py": """\
Observations stored: 3
Dynamic shapes (add model): ({0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, {1: DimHint(DYNAMIC)})
Inferred arguments: (T1s2x6,T1s1x6)

Observations stored (LLM): 2
Dynamic shapes (LLM): {'input_ids': {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, \
'attention_mask': {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, \
'past_key_values': [{0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}, {0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}, \
{0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}, {0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}]}
Inferred kwargs: dict(input_ids:T7s1x10,attention_mask:T7s1x10,\
past_key_values:DynamicCache(key_cache=#2[T1s1x4x10x32,T1s1x4x10x32], \
value_cache=#2[T1s1x4x10x32,T1s1x4x10x32]))

Observations stored (multimodal): 3
Dynamic shapes (multimodal): {'input_ids': {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, \
'pixel_values': {0: DimHint(DYNAMIC)}, \
'attention_mask': {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, \
'past_key_values': [{0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}, {0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}, \
{0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}, {0: DimHint(DYNAMIC), 2: DimHint(DYNAMIC)}]}
Inferred kwargs: dict(input_ids:T7s1x1,pixel_values:T1s0x3x224x224,attention_mask:T7s1x21,\
past_key_values:DynamicCache(key_cache=#2[T1s1x4x20x32,T1s1x4x20x32], \
value_cache=#2[T1s1x4x20x32,T1s1x4x20x32]))
""",
    "plot_dynamic_shapes_what.py": """\
dict(input_ids:T7s2x3,attention_mask:T7s2x33,position_ids:T7s3,\
past_key_values:DynamicCache(key_cache=#1[T1s2x1x30x96], value_cache=#1[T1s2x1x30x96]))
{'attention_mask': {0: 'd_1_0', 1: 'd_1_1'},
 'input_ids': {0: 'd_0_0', 1: 'd_0_1'},
 'past_key_values': [[{0: 'd_3_0', 1: 'd_3_1', 2: 'd_3_2', 3: 'd_3_3'}],
                     [{0: 'd_4_0', 1: 'd_4_1', 2: 'd_4_2', 3: 'd_4_3'}]],
 'position_ids': {0: 'd_2_0'}}
[{0: 'd_3_0', 1: 'd_3_1', 2: 'd_3_2', 3: 'd_3_3'},
 {0: 'd_4_0', 1: 'd_4_1', 2: 'd_4_2', 3: 'd_4_3'}]
dict(input_ids:T7s2x3,attention_mask:T9s2x1x3x96,cache_position:T7s3,\
past_key_values:StaticCache(key_cache=#1[T1s2x1x96x96], value_cache=#1[T1s2x1x96x96]))
The static cache is opened as it is.
{'attention_mask': {0: 'd_1_0', 1: 'd_1_1', 2: 'd_1_2', 3: 'd_1_3'},
 'cache_position': {0: 'd_2_0'},
 'input_ids': {0: 'd_0_0', 1: 'd_0_1'},
 'past_key_values': [[{0: 'd_3_0', 1: 'd_3_1', 2: 'd_3_2', 3: 'd_3_3'}],
                     [{0: 'd_4_0', 1: 'd_4_1', 2: 'd_4_2', 3: 'd_4_3'}]]}
{'attention_mask': {0: Dim('batch', min=1, max=1024), 2: 'seq'},
 'cache_position': {0: 'seq'},
 'input_ids': {0: Dim('batch', min=1, max=1024), 1: 'seq_length'},
 'past_key_values': [[{0: Dim('batch', min=1, max=1024)}],
                     [{0: Dim('batch', min=1, max=1024)}]]}
""",
    "plot_exporter_inputs.py": """\
torch.Size([3, 8, 7, 6])
torch.Size([4, 8, 7, 6])
by hand: ('x', 'cache_key_cache_0', 'cache_value_cache_0')
watched: ('x', 'cache.tokens', 'cache.key_cache.0', 'cache.value_cache.0')
watched, exact on new sizes: True
module, as it is: ('x',)
of the given cache: False
of the first cache: True
module, by hand: ('x', 'cache_key_cache_0', 'cache_value_cache_0')
module, watched: ('x', 'cache.tokens', 'cache.key_cache.0', 'cache.value_cache.0')
module, watched, exact on new sizes: True
""",
    "plot_what_was_proven.py": """\
watched: [(2, 5, 4), (3, 7, 4), (1, 12, 4), (4, 20, 4), (2, 40, 4), (8, 64, 4)]
graphs: 2 - verified: True
""",
    "input_observer_basics.py": """\
add: (T1s2x6,T1s2x6) ({0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)})
add is exact on new sizes: True
llama calls: 3
llama: ['attention_mask', 'input_ids', 'past_key_values', 'position_ids']
llama is exact on new sizes: True
captioner: dict(input_ids:T7s1x7,pixel_values:T10s0x3x896x896)
captioner: {'input_ids': {1: DimHint(DYNAMIC)}, 'pixel_values': {0: DimHint(DYNAMIC)}}
batch of the ids: {'input_ids': {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, \
'pixel_values': {0: DimHint(DYNAMIC)}}
batch of all: {'input_ids': {0: DimHint(DYNAMIC), 1: DimHint(DYNAMIC)}, 'pixel_values': {0: DimHint(DYNAMIC)}}
captioner calls: 2 2
- ids: T7s1x7
- ids: T7s1x6
""",
}


def test_every_example_is_known() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_known_to_print(name: str) -> None:
    result = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == PRINTED[name]
