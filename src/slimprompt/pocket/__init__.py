"""The pocket world: rendered images, captions and benchmarks for the embedded models.

| module | contents |
|---|---|
| `images` | `render` an image of a `Scene` in a `Style`; the tables of shapes, colours, textures, media and modifiers |
| `captions` | `caption` describes an image; `class_name` and `style_words` name its parts |
| `benchmarks` | `POCKET_BENCHMARKS`, the scenes and styles held out from pre-training, and `render_benchmark` |
"""
