"""Decoders that read what an encoder made of text, sound or an image."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.models import caches, patterns
from kvplan.models.family import AS_HEADS, PLAIN, Builder, Family, types

CROSSED: Mapping[str, Builder] = {
    **PLAIN,
    **{f"crossed_{kind}": caches.crossing(builder) for kind, builder in PLAIN.items()},
}
_BART = {
    "num_hidden_layers": ("decoder_layers",),
    "num_attention_heads": ("decoder_attention_heads",),
    "num_key_value_heads": ("decoder_attention_heads",),
}
_BOUNDED = {**_BART, "max_source_positions": ("max_position_embeddings",)}

ENCODER_DECODER = (
    Family(
        types=("whisper",),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names=_BART,
        defaults={**AS_HEADS, "max_source_positions": 1500, "max_target_positions": 448},
        weights="encoder_decoder",
    ),
    Family(
        types=types("bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart"),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names=_BOUNDED,
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=types(
            "bigbird_pegasus fsmt led mvp nllb-moe pegasus_x pp_formulanet_text seamless_m4t seamless_m4t_v2 "
            "speech_to_text speecht5 trocr"
        ),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names=_BART,
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("prophetnet",),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names={"num_hidden_layers": ("num_decoder_layers",), "num_attention_heads": ("num_decoder_attention_heads",)},
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("moonshine",),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names={
            "num_hidden_layers": ("decoder_num_hidden_layers",),
            "num_attention_heads": ("decoder_num_attention_heads",),
            "num_key_value_heads": ("decoder_num_key_value_heads",),
        },
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=types("canary_decoder cohere_asr dia_decoder moonshine_streaming"),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        weights="",
    ),
    Family(
        types=("musicgen_decoder",),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("musicgen_melody_decoder",),
        layers={"full_attention": caches.conditioned},
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=types("t5 mt5 umt5 longt5 switch_transformers udop pop2piano"),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names={
            "num_hidden_layers": ("num_decoder_layers", "num_layers"),
            "num_attention_heads": ("num_heads",),
            "head_dim": ("d_kv",),
            "max_source_positions": ("n_positions",),
        },
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("pix2struct_text_model",),
        pattern=patterns.beside_encoder(),
        layers=CROSSED,
        names={"num_hidden_layers": ("num_layers",), "num_attention_heads": ("num_heads",), "head_dim": ("d_kv",)},
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("t5_gemma_module",),
        pattern=patterns.beside_encoder(patterns.by_class),
        layers=CROSSED,
        weights="",
    ),
    Family(
        types=("t5gemma2_decoder",),
        pattern=patterns.beside_encoder(patterns.by_class),
        layers=CROSSED,
        weights="",
    ),
    # Encoders that can be run as decoders, alone or behind another encoder.
    Family(
        types=types(
            "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
            "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
        ),
        pattern=patterns.as_decoder,
        layers=CROSSED,
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("mllama_text_model",),
        pattern=patterns.indices("cross_attention_layers", inside="cross_attention", outside="full_attention"),
        layers={"full_attention": caches.attention, "cross_attention": caches.cross_only},
        weights="",
    ),
)
