"""The status of a pipeline as HTML: a file, or pages that a job serves while it runs.

- pure: `markup` (elements with escaped texts), `style` (colours, style sheet), `facts` (what a page shows),
  `page` (facts to HTML), `script` (of served pages)
- serving: `serve` starts it for a run, `site` answers requests, `history` has the last hour and its plots
- writing: `write_page` replaces a file
"""
