"""Predictions for collections of any size: streamed, resumable, on this machine or on Ray.

| module | contents |
|---|---|
| `rows` | `Prediction`: what is known about one image; its columns |
| `places` | where the content of one image is: a file, a member of a tar file, a cell of a table |
| `inputs` | the images of folders, files, CSV and Parquet files and WebDataset shards, one by one |
| `parts` | parts of a collection, and the folder of finished ones, which is the output and from which a stopped command is resumed |
| `output` | predictions as a CSV, JSON Lines or Parquet file |
| `predict` | decode ahead, encode in batches, make rows; `predict_collection` |
| `ray` | the same on the workers of a Ray cluster |
"""
