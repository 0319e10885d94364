// Everything about the chosen row: its figures, its bytes per level, its operators or the rows that it stands for.
const facts = entries => element("dl", {}, ...entries.flatMap(([name, text, hint]) =>
  [element("dt", {textContent: name, title: hint ?? ""}), element("dd", {textContent: text})]))

function grid(heading, titles, lines) {
  const cells = (tag, texts) => element("tr", {}, ...texts.map(t => element(tag, {}, t)))
  const head = element("thead", {}, cells("th", titles)), body = element("tbody", {}, ...lines.map(l => cells("td", l)))
  return element("div", {className: "grid"}, element("h3", {textContent: heading}), element("table", {}, head, body))
}

const known = x => x !== null && x !== undefined && x !== ""
const leveled = field => /^(bytes|intensity|bandwidth)_(?!moved)/.test(field)

function levelsOf(row) {
  const fields = tab.columns.map(c => c.field).filter(f => f.startsWith("bytes_") && f !== "bytes_moved")
  const names = fields.map(f => f.slice(6))
  const lines = names.filter(n => known(row[`bytes_${n}`])).map(n => [n, si(row[`bytes_${n}`], "B"),
    write(row[`intensity_${n}`], "fixed"), write(row[`bandwidth_${n}`], "si", "B/s")])
  return lines.length ? [grid("Bytes per level", ["level", "bytes", "FLOP/B", "bandwidth"], lines)] : []
}

function operatorsOf(row) {
  const kind = data.kinds.find(k => k.name === "ops")
  if (tab.name !== "modules" || row.members || !kind) return []
  const all = kind.rows.map((values, i) => record(kind.columns, values, i))
  const lines = all.filter(o => o.name === row.name && o.phase === row.phase).map(o =>
    [o.operator.replace("aten::", ""), si(o.time_s, "s"), write(o.flops, "amount"), write(o.bytes_moved, "amount"),
     o.bound, write(o.utilization_pct, "percent")])
  return lines.length ? [grid("Operators", ["operator", "time", "FLOPs", "bytes", "bound", "utilization"], lines)] : []
}

function membersOf(row) {
  const go = m => () => choose(m.index)
  const link = m => element("button", {type: "button", className: "link", textContent: nameOf(m), onclick: go(m)})
  const lines = (row.members ?? []).map(m => [link(m), si(m.time_s, "s"), write(m.utilization_pct, "percent")])
  return lines.length ? [grid(`${lines.length} folded rows`, ["name", "time", "utilization"], lines)] : []
}

function showDetails(row) {
  at("details").hidden = !row
  at("charts").hidden = Boolean(row)
  if (!row) return at("details").replaceChildren()
  const figures = tab.columns.filter(c => c.field !== "name" && !leveled(c.field) && known(row[c.field])
    && write(row[c.field], c.format, c.unit)
    && !(c.field === "count" && row.count === 1))
  const close = element("button", {type: "button", className: "close", textContent: "×", title: "Close",
                                   ariaLabel: "Close", onclick: () => choose(null)})
  const value = c => c.format === "amount" ? si(row[c.field], c.unit === "1/s" ? "" : c.unit) : write(row[c.field], c.format, c.unit)
  at("details").replaceChildren(element("h2", {}, nameOf(row), close),
    facts(figures.map(c => [c.title, value(c), c.meaning])), ...levelsOf(row), ...operatorsOf(row), ...membersOf(row))
  at("details").scrollTop = 0
}

// The terms of the equation of the time: a bar.
function divide() {
  const total = data.division.reduce((s, d) => s + d.seconds, 0)
  if (!total) return
  const segment = d => {
    const label = element("b", {textContent: d.label}), time = element("i", {textContent: ` ${si(d.seconds, "s")}`})
    return element("div", {className: `segment ${d.kind}`, title: `${d.label}: ${si(d.seconds, "s")}`,
                           style: `flex-grow: ${d.seconds / total}`}, element("span", {}, label, time))
  }
  at("division").append(...data.division.map(segment))
  at("division").setAttribute("role", "img")
  at("division").ariaLabel = data.division.map(d => `${d.label} ${si(d.seconds, "s")}`).join(", ")
  at("division").hidden = false
}
