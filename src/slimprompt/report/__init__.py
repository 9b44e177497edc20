"""Tables, figures and pages of any runs and any paper; imports neither the paper nor the quickstart.

- `table`, `table_formats`: tables as frames of cells, and as Markdown, LaTeX, CSV and XLSX.
- `methods_tables`, `methods_figures`: comparisons of methods.
- `plotting`: the style of the figures, and what they share.
- `paper`: what a paper brings: studies, tables, figures, claims.
- `page`, `summary`, `runs`: the report of a folder of runs.
- `html`: the page engine with its templates in `templates/`; `folder`: a folder that holds exactly one result.
- `fit_page`, `fit_figures`: the page about one fitted prompt or head.
- `curation_pages`: the pages of `suggest` and `check-labels`.
"""
