"""HTTP service and web page for saved prompts and heads (`slimprompt serve`; extra `serve`).

| module | contents |
|---|---|
| `limits` | what requests may hold |
| `admission` | reading bodies within the limits, counting images in progress |
| `uploads` | images and options of a request, from multipart forms or JSON; decoding |
| `models` | several classifiers on shared backbones, and their answers as rows |
| `batching` | the one thread that runs the models, on the images of several requests at once |
| `metrics` | counters in Prometheus' text format |
| `app` | the FastAPI application |
| `server` | uvicorn: sockets, signals, idle connections |
| `page/` | the web page |
"""
