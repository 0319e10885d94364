// Tab, filters and columns stand in the URL, so that a link or a reload shows the same.
function remember() {
  const parts = new URLSearchParams()
  if (tab !== data.kinds[0]) parts.set("tab", tab.name)
  for (const [field, value] of Object.entries(state.filters)) if (value) parts.set(`filter-${field}`, value)
  if (state.text) parts.set("text", state.text)
  if (state.regex) parts.set("regex", "1")
  if (state.fold !== null) parts.set("fold", state.fold ? "1" : "0")
  for (const [kind, fields] of Object.entries(state.columns)) parts.set(`columns-${kind}`, fields.join(" "))
  if (state.sort) parts.set("sort", state.sort.join(" "))
  if (state.row !== null) parts.set("row", state.row)
  history.replaceState(null, "", parts.size ? `#${parts}` : location.href.split("#")[0])
}

// The state that the URL describes; what it does not name is as at the start.
function recall() {
  const parts = new URLSearchParams(location.hash.slice(1))
  const named = prefix => [...parts].filter(([k]) => k.startsWith(prefix)).map(([k, v]) => [k.slice(prefix.length), v])
  const row = parts.has("row") ? Number(parts.get("row")) : null
  Object.assign(state, {
    filters: Object.fromEntries(named("filter-")), text: parts.get("text") ?? "", regex: parts.get("regex") === "1",
    fold: parts.has("fold") ? parts.get("fold") === "1" : null,
    columns: Object.fromEntries(named("columns-").map(([k, v]) => [k, v.split(" ")])),
    sort: parts.get("sort")?.split(" ") ?? null, row, open: new Set()})
  return data.kinds.find(k => k.name === parts.get("tab")) ?? data.kinds[0]
}
