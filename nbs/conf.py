"Sphinx: the notebooks as a site. Outputs are those in the notebooks; nothing is fetched from a network."
project = "fasterbench"
copyright = "2026, fasterbench developers"
extensions = ["myst_nb"]
html_theme = "furo"
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["benchmarks", "**.ipynb_checkpoints"]
suppress_warnings = ["mystnb.unknown_mime_type"]
