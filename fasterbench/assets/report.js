// Start, tabs, and what a choice does.
let listed = new Set()

// The libraries are in this file as compressed text.
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0))
const unzip = stream => new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text()
const unpacked = id => unzip(new Blob([bytes(at(id).textContent)]).stream())
async function library(id) {
  const url = URL.createObjectURL(new Blob([await unpacked(id)], {type: "text/javascript"}))
  return import(url).finally(() => URL.revokeObjectURL(url))
}
async function libraries() {
  const style = unpacked("table-style"), module = library("table-module")
  const code = await unpacked("plotly")
  document.head.append(element("script", {textContent: code}))
  document.head.prepend(element("style", {textContent: await style}))
  DataTable = (await module).default
}

function arranged() {
  const now = arrange()
  listed = now.listed
  short = {}
  marked = now.marked
  passing = new Set(now.rows.map(r => r.index))
  return now
}

// Filters, columns or groups have changed: charts, table, sum and URL follow.
function refresh(drawCharts = redraw) {
  const now = arranged()
  table.draw()
  fitNames()
  const fitted = () => fittedTo === `${tab.name} ${at("scroller").clientWidth}`
  if (!fitted()) fitColumns()
  columnMenu()
  fit()                                   // the menu says how many columns: the filters above may take a line more
  if (!fitted()) { fitNames(); fitColumns() }                     // a table of less height may have got a bar
  reachable()
  drawCharts()
  const sum = field => now.rows.some(r => r[field] === null) ? null : now.rows.reduce((s, r) => s + (r[field] ?? 0), 0)
  const left = tab.left_out ? `; ${tab.left_out} faster rows are not in this file` : ""
  const timed = tab.columns.some(c => c.field === "share" && c.title === "share")
  const time = timed && sum("share") !== null
    ? ` · ${write(sum("time_s"), "si", "s")}, ${write(sum("share"), "share")} of the sum of the rows` : ""
  const invalid = at("text").getAttribute("aria-invalid") === "true"
  const wrong = invalid ? " · invalid regular expression, ignored" : ""
  const none = now.rows.length ? "" : " · no row matches the filters"
  at("shown").textContent = `${now.rows.length} of ${rows.length} rows${left}${time}${wrong}${none}`
  remember()
}

function unfold(index) {
  state.open.has(index) ? state.open.delete(index) : state.open.add(index)
  refresh()
}

// A row is chosen, on a chart or in the table: both show it, on screen, until the next.
function choose(index) {
  const row = index === null || index === undefined ? null : rowAt(index)
  state.row = row ? row.index : null
  if (row?.under && !listed.has(row.index)) state.open.add(row.under.index)
  showDetails(row)
  refresh()
  if (row) show(row)
}

function show(row) {
  lineOf(row.index)?.scrollIntoView({block: "nearest", inline: "nearest"})
  const inside = e => { const b = e.getBoundingClientRect(); return b.top >= 0 && b.bottom <= innerHeight }
  const line = lineOf(row.index)
  if (line && !(inside(at("chart")) && inside(line))) at("chart").scrollIntoView({block: "start"})
}

function options(f) {
  const present = tab.columns.some(c => c.field === f.field)
  const values = present ? [...new Set(rows.map(r => r[f.field]))].filter(v => v).map(String).sort() : []
  const select = at(`filter-${f.field}`)
  if (f.field === "category" && values.includes("data movement")) values.push("not data movement")
  select.replaceChildren(element("option", {value: "", textContent: `${f.title}: all`}),
    ...values.map(v => element("option", {value: v, textContent: v})))
  if (!values.includes(state.filters[f.field])) delete state.filters[f.field]
  select.value = state.filters[f.field] ?? ""
  select.hidden = values.length < 2
}

// Another tab, or another state from the URL.
function open(kind) {
  readRows(kind)
  data.filters.forEach(options)
  at("text").value = state.text
  at("text").hidden = at("regex").parentElement.hidden = !tab.columns.some(c => c.text)
  at("text").placeholder = at("text").ariaLabel = tab.columns.some(c => c.title === "name") ? "name, type, operator" : "text"
  at("regex").checked = state.regex
  at("fold").checked = state.fold ?? tab.fold
  at("fold").parentElement.hidden = !groups.length
  at("filters").hidden = [...at("fields").children].every(e => e.hidden)
  document.querySelector(`#tabs [value="${kind.name}"]`).checked = true
  if (!(state.row < rows.length + groups.length)) state.row = null
  arranged()
  showDetails(state.row === null ? null : rowAt(state.row))
  columnsForWidth()
  fit()
  refresh(drawAll)
  document.body.dataset.ready = kind.name
}

function build() {
  const change = k => () => { state.row = state.sort = null; state.open.clear(); open(k) }
  const radio = k => element("input", {type: "radio", name: "tab", value: k.name, onchange: change(k)})
  at("tabs").append(...data.kinds.map(k => element("label", {}, radio(k), element("span", {textContent: k.title}))))
  at("tabs").hidden = data.kinds.length < 2
  const box = (id, text, hint) => element("label", {title: hint}, element("input", {id, type: "checkbox"}), ` ${text}`)
  at("fields").append(
    ...data.filters.map(f => element("select", {id: `filter-${f.field}`, ariaLabel: f.title})),
    element("input", {id: "text", type: "search"}),
    box("regex", "regex", "Match the text as a regular expression"))
  const hint = "Download the rows shown, with all columns, in base units"
  const summary = element("summary", {textContent: "columns"})
  at("tools").append(box("fold", "fold blocks", "Show repeated blocks as one row"),
    element("details", {className: "menu"}, summary, element("div", {id: "columns"})),
    element("button", {id: "csv", type: "button", textContent: "CSV", title: hint, onclick: csv}))
  at("filters").open = wide() && !low()
  if (wide()) return
  folded([...document.querySelectorAll("header > .note")].filter(e => !e.hidden).slice(1))
  const lines = [...document.querySelectorAll(".lead")]
  while (lines.length > 3 && at("chart").getBoundingClientRect().top > 0.75 * innerHeight) folded([lines.pop()])
}

// On a phone one note is to be seen, and the others behind it, as are lines after the third that push the chart away.
function folded(notes) {
  at("notes").querySelector("summary").after(...notes)
  const count = at("notes").querySelectorAll(".note").length
  at("notes").querySelector("summary").textContent = `${count} more note${count === 1 ? "" : "s"}`
  at("notes").hidden = !count
}

function listen() {
  const form = document.forms[0]
  form.addEventListener("submit", e => e.preventDefault())
  at("filters").addEventListener("input", () => {
    for (const f of data.filters) state.filters[f.field] = at(`filter-${f.field}`).value
    Object.assign(state, {text: at("text").value, regex: at("regex").checked})
    refresh()
  })
  at("fold").addEventListener("input", () => {
    state.fold = at("fold").checked
    choose(null)
  })
  const menus = () => document.querySelectorAll(".menu[open]")
  const shut = unless => { for (const m of menus()) if (!m.contains(unless)) m.open = false }
  document.addEventListener("click", e => shut(e.target))
  document.addEventListener("keydown", e => { if (e.key === "Escape") shut(null) })
  addEventListener("hashchange", () => open(recall()))
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw)
  let waiting
  const later = () => { clearTimeout(waiting); waiting = setTimeout(resized, 150) }
  new ResizeObserver(later).observe(at("chart"))
  addEventListener("resize", later)
}

// Sizes of text and the places of names follow the width.
async function resized() {
  if (size !== sizeOfChart()) {
    size = sizeOfChart()
    if (spared.size) columnsForWidth()
    refresh(() => {})
    await redraw()
  }
  inPlace()
}

// The charts and the table end where the window does.
function fit() {
  const top = document.querySelector(".both").getBoundingClientRect().top + scrollY
  document.documentElement.style.setProperty("--top", `${Math.round(top)}px`)
  for (const s of document.querySelectorAll(".segment")) {
    s.classList.remove("brief", "silent")
    for (const less of ["brief", "silent"]) if (s.scrollWidth > s.clientWidth) s.classList.add(less)
  }
  const silent = [...document.querySelectorAll(".segment")].map(s => s.classList.contains("silent"))
  const unnamed = data.division.filter((_, i) => silent[i])          // below the bar, in the same order
  at("key").replaceChildren(...unnamed.map(d => element("span", {}, element("i", {className: d.kind}), ` ${d.label}${wide() ? " " + si(d.seconds, "s") : ""}`)))
}

async function start() {
  build()
  fit()
  const fitted = new ResizeObserver(() => requestAnimationFrame(fit))      // it changes what is observed, which is an error meanwhile
  for (const e of [document.querySelector("header"), document.forms[0]]) fitted.observe(e)
  await libraries()
  divide()
  listen()
  open(recall())
}
start().catch(e => {
  at("trouble").hidden = false
  at("trouble").textContent = `This browser cannot show the report (${e.message}). Browsers from 2023 on can.`
})
