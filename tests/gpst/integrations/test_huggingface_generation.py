"""Generation through transformers, by the GPT-2 export and by the GPST export alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, DynamicCache, GenerationConfig, pipeline
from transformers.generation.streamers import BaseStreamer
from transformers_models import TEXTS, is_gpst, load, write

# transformers, peft and accelerate are not as clean as this project.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("own_modules")]


class Heard(BaseStreamer):
    def __init__(self):
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_rows_of_unlike_lengths_are_continued_as_alone(model, tokenizer, inputs):
    assert inputs.input_ids.shape == inputs.attention_mask.shape
    assert 0 in inputs.attention_mask[:, 0]  # padded on the left
    together = write(model, **inputs, max_new_tokens=5)
    assert together.shape == (3, inputs.input_ids.shape[1] + 5)
    for row, text in zip(together, TEXTS, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        alone = write(model, inputs=ids, max_new_tokens=5)
        assert alone[0].tolist() == row[-alone.shape[1] :].tolist()
        assert alone[:, : ids.shape[1]].tolist() == ids.tolist()


def test_tokenizers_may_say_that_all_tokens_are_of_the_first_segment(model, inputs):
    if not is_gpst(model):
        pytest.skip("GPT-2 adds an embedding for them")
    segments = torch.zeros_like(inputs.input_ids)
    with_segments = write(model, **inputs, token_type_ids=segments, max_new_tokens=3)
    assert torch.equal(with_segments, write(model, **inputs, max_new_tokens=3))
    with pytest.raises(ValueError, match="token_type_ids is not supported by GPST"):
        write(model, **inputs, token_type_ids=segments + 1, max_new_tokens=3)


def test_draws_come_from_torchs_generator(model, inputs):
    def draw(**options):
        return write(model, **inputs, max_new_tokens=5, do_sample=True, **options).tolist()

    torch.manual_seed(1)
    first, second = draw(), draw()
    torch.manual_seed(1)
    assert draw() == first
    assert second != first
    assert len({tuple(row) for row in draw(num_return_sequences=4)}) > 9
    greedy = write(model, **inputs, max_new_tokens=5).tolist()
    assert draw(top_k=1) == greedy
    assert draw(top_p=1e-6, temperature=2.0) == greedy
    if is_gpst(model):
        assert draw(seed=4) == draw(seed=4)
        with pytest.raises(ValueError, match="temperature: 1e-40 is too small to divide by; do_"):
            draw(temperature=1e-40)
    assert draw(generation_config=GenerationConfig(top_k=1, pad_token_id=0)) == greedy


def test_text_ends_where_it_is_told(model, inputs):
    start = inputs.input_ids.shape[1]
    whole = write(model, **inputs, max_length=start + 6)
    assert whole.shape[1] == start + 6
    end = int(whole[0, start + 1])
    ended = write(model, **inputs, max_new_tokens=6, eos_token_id=end)
    place = whole[0, start:].tolist().index(end)
    after = start + place + 1
    assert ended[0, :after].tolist() == whole[0, :after].tolist()
    assert set(ended[0, after:].tolist()) <= {model.config.pad_token_id}
    heard = Heard()
    alone = write(model, inputs=inputs.input_ids[1:2], max_new_tokens=4, streamer=heard)
    assert heard.tokens == alone[0].tolist()
    assert heard.ended
    with pytest.raises(ValueError, match=r"model_kwargs.*max_new_token'"):
        write(model, **inputs, max_new_token=3)


def test_beam_search_over_texts(model, inputs):
    found = write(
        model, **inputs, max_new_tokens=4, num_beams=3, num_return_sequences=2,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert found.sequences.shape[0] == 6
    scores = found.sequences_scores.view(3, 2)
    assert (scores[:, 0] >= scores[:, 1]).all()
    greedy = write(
        model, **inputs, max_new_tokens=4, return_dict_in_generate=True, output_logits=True
    )
    log_p = torch.stack(greedy.logits, 1).log_softmax(-1)
    new = greedy.sequences[:, -4:]
    of_greedy = log_p.gather(2, new[:, :, None])[..., 0].sum(1) / 4
    assert (scores[:, 0] >= of_greedy - 1e-5).all()


def test_the_pipeline_of_the_model_cards_tag(folder):
    writer = pipeline("text-generation", model=str(folder), trust_remote_code=True, device="cpu")
    [one] = writer("The old man", max_new_tokens=4, do_sample=False)
    assert one["generated_text"].startswith("The old man")
    several = writer(TEXTS, max_new_tokens=3, batch_size=3, num_return_sequences=2, do_sample=True)
    assert [len(texts) for texts in several] == [2, 2, 2]
    [new] = writer("The old man", max_new_tokens=4, do_sample=False, return_full_text=False)
    assert one["generated_text"] == "The old man" + new["generated_text"]


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_generation_stops_at_a_string(kind):
    trained = Path(__file__).parents[3] / "launch" / "demo_model" / kind
    model, tokenizer = load(trained), AutoTokenizer.from_pretrained(trained)
    given = tokenizer("We must act.", return_tensors="pt")
    options = {"do_sample": False, "max_new_tokens": 12}
    whole = write(model, **given, **options)[0].tolist()
    new = tokenizer.convert_ids_to_tokens(whole[given.input_ids.shape[1] :])
    word = next(word for word in new[2:] if word.isalpha() and word not in new[:2])
    until = {"stop_strings": [" " + word], "tokenizer": tokenizer}
    end = given.input_ids.shape[1] + new.index(word) + 1
    assert end < len(whole)
    assert write(model, **given, **options, **until)[0].tolist() == whole[:end]
    writer = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    [one] = writer("We must act.", **options, **until)
    assert one["generated_text"].endswith(" " + word)


def test_what_generation_cannot_do_is_one_line(folder, tokenizer):
    model = load(folder)
    if not is_gpst(model):
        pytest.skip("GPST's own lines")
    given = tokenizer("The old man", return_tensors="pt")
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=rf"seed: {seed} is not allowed; it must be a whole"):
            model.generate(**given, seed=seed)
    assert model.generate(**given, seed=2**64 - 1, do_sample=True, max_new_tokens=1).shape == (1, 4)
    with pytest.raises(ValueError, match="guidance_scale is not supported by GPST: it reads"):
        model.generate(**given, guidance_scale=1.5, max_new_tokens=2)
    with pytest.raises(ValueError, match="seed: 'a' is not allowed"):
        model.generate(**given, seed="a")
    for beam in (2.5, True, 0, 10**9):
        with pytest.raises(ValueError, match=f"beam: {beam} is not allowed; it must be a whole"):
            model.generate(**given, beam=beam, max_new_tokens=2)
    options = {"beam": np.int64(4), "seed": np.int64(3), "do_sample": True, "max_new_tokens": 2}
    assert model.generate(**given, **options).shape == (1, 5)
    for shape in ((1, 2), (2, 3), (1, 5), (3,)):
        mask = {"attention_mask": torch.ones(shape, dtype=torch.int64)}
        with pytest.raises(ValueError, match=r"attention_mask: shape .* is not that of input_ids"):
            model.generate(given.input_ids, **mask, max_new_tokens=2)
    with pytest.raises(ValueError, match="past_key_values is not supported by GPST: a search"):
        model.generate(**given, past_key_values=DynamicCache(), max_new_tokens=2)
    with pytest.raises(ValueError, match="cache_implementation is not supported by GPST: a search"):
        model.generate(**given, cache_implementation="static", max_new_tokens=2)
    with pytest.raises(ValueError, match="inputs_embeds is not supported by GPST: trees are sear"):
        model.generate(**given, inputs_embeds=torch.zeros(1, 2, 8), max_new_tokens=2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), "an empty text"),
        (torch.zeros(0, 3, dtype=torch.int64), "no rows"),
        (torch.zeros(3, dtype=torch.int64), r"shape \(3,\) is not \(rows, tokens\)"),
        (torch.zeros(1, 3), "token ids are whole numbers, not torch.float32"),
        ([[5, 6]], "a tensor is needed, not a list"),
        ("text", "a tensor is needed, not a str"),
    ],
)
def test_what_are_no_token_ids_is_one_line(folder, wrong, said):
    model = load(folder)
    if not is_gpst(model):
        pytest.skip("GPST's own lines")
    with pytest.raises(ValueError, match=f"^input_ids: {said}"):
        model.generate(wrong, max_new_tokens=2)
    if said not in ("an empty text", "no rows"):
        with pytest.raises(ValueError, match=f"^input_ids: {said}"):
            model(wrong)
