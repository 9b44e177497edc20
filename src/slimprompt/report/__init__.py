"""General rendering; imports neither the paper nor the quickstart, whose templates are here with the others.

- `table`: a table as plain data; `table_formats`: Markdown, LaTeX, CSV and XLSX.
- `plotting`: the style of the plots, the panels, the legend and the files.
- `figure_style`: line styles, labels and messages that figures about runs share.
- `methods_tables`, `methods_figures`: comparisons of methods.
- `html`: the page engine with its templates in `templates/`.
- `runs`: the table of runs and the provenance that pages share.
- `fit_page`, `fit_figures`: the page about one fitted prompt or head, and its figures.
- `curation_pages`: the pages of `suggest` and `check-labels`.
"""
