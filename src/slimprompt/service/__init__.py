"""HTTP service and web page for saved models (`slimprompt serve`; extra `serve`).

| module | contents |
|---|---|
| `limits` | what requests may hold |
| `uploads` | images and options of a request, from multipart forms or JSON, read within the limits |
| `decoding` | image files → eval views, on threads, so that no request waits for the images of a large one |
| `models` | several classifiers on shared backbones |
| `batching` | the one thread that runs the models, on the images of several requests at once |
| `metrics` | counters in Prometheus' text format |
| `app` | the FastAPI application |
| `server` | uvicorn: sockets, signals, idle connections |
| `page/` | the web page |
"""
