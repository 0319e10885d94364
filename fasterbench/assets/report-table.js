// The table: DataTables, given the columns that are shown.
let table, DataTable
const firstColumns = () => tab.columns.filter(c => (c.visible || telling.has(c.field)) && !spared.has(c.field)).map(c => c.field)
const shownFields = () => state.columns[tab.name] ?? firstColumns()
const columnsOf = fields => fields.map(f => tab.columns.find(c => c.field === f)).filter(Boolean)
const shownColumns = () => { const kept = columnsOf(shownFields()); return kept.length ? kept : columnsOf(firstColumns()) }

// What the first columns leave out for want of room, one after the other: texts that the name says already, then what
// follows from the others. They wait in the column menu.
let spared = new Set(), telling = new Set(), fittedTo = ""
const spare = ["type", "operator", "wire_bytes", "slowest_rank", "low_utilization", "low_s", "interval_low_s",
               "interval_high_s", "high_s", "p10", "p90", "rank_min_s", "phase", "category", "memory_level", "dense_mfu", "hfu",
               "limit_s", "kind", "rounds", "limit_used", "interval", "layer", "update_share", "recompute_share", "forward_share", "backward_share",
               "mfu", "unknown_share", "launch_share", "others", "per_request",
               "measured_per_s", "context", "weight_bytes", "kv_bytes", "most_batch", "limit_price", "outside_share",
               "overhead_share", "disturbed", "rank_max_s", "limit_per_device", "ratio_interval", "first_s", "output_price", "requests_per_s", "latency", "bound", "ratio", "achieved_gflops", "tokens_per_s",
               "utilization_before_pct", "saved_bytes", "kept_bytes", "eager_bytes", "batch", "expected_s", "potential_s",
               "utilization_after_pct", "change", "size", "fitted", "error", "found", "price", "binds", "measured_s", "ratio_2", "time_ratio"]

// On a phone also, at last, what the chart says: the results between the first and the last, utilization, share; then the
// last numbers.
const between = () => tab.columns.map(c => c.field).filter(f => /^time_\d+_s$/.test(f)).slice(1, -1).reverse()
const lastFirst = () => tab.columns.filter(c => !c.text && c.field !== "time_s").map(c => c.field).slice(1).reverse()
const spareHere = () => wide() ? spare : [...new Set([...spare, ...between(), "utilization_pct", "share", ...lastFirst()])]

// Rows that differ in what they are differ in what is seen: a column that alone tells some apart is shown.
const identity = new Set(["name", "type", "operator", "phase", "category", "dtype", "model", "layer", "figure", "budget", "kind", "batch"])
const textsOf = fields => fields.filter(f => identity.has(f))
const kindsOf = fields => new Set(rows.map(r => fields.map(f => r[f] ?? "").join("\n"))).size
function tellsApart(field) {
  const seen = textsOf(firstColumns())
  if (field === "phase" && !wide()) return false                 // the names say it
  return seen.includes(field) && kindsOf(seen.filter(f => f !== field)) < kindsOf(seen)
}
function findTelling() {
  telling = new Set()
  for (const f of textsOf(tab.columns.map(c => c.field))) {
    const seen = textsOf(firstColumns())
    if (!seen.includes(f) && kindsOf([...seen, f]) > kindsOf(seen)) telling.add(f)
  }
}
// Names that are cut beyond recognition: a column gives way, for short ones any that may, for long ones what they say too.
const namesAreCut = field => wide() && tab.columns.some(c => c.field === "name" && c.visible) && nameWidth < Math.min(20, longestName)
  && (longestName <= 20 || spare.indexOf(field) <= spare.indexOf("low_utilization"))
const tooWide = () => at("table").offsetWidth > at("scroller").clientWidth + 1
function fitColumns() {
  fittedTo = `${tab.name} ${at("scroller").clientWidth}`
  if (state.columns[tab.name]) return
  const visible = new Set(tab.columns.filter(c => c.visible).map(c => c.field))
  const order = spareHere().filter(f => visible.has(f))
  while (order.length && (tooWide() || namesAreCut(order[0]))) {
    const field = order.shift()
    if (tellsApart(field)) continue
    spared.add(field)
    drawTable()
    table.draw()
    fitNames()
  }
}
// The columns that fit, for the tab and the width that there are now.
function columnsForWidth() {
  spared = new Set()
  findTelling()
  fittedTo = ""
  drawTable()
}

// Rows of an open group stay below it, whatever the order; what is unknown comes last.
function inOrder(a, b, field, sign) {
  const one = a.under ?? a, other = b.under ?? b
  const value = row => row[field] ?? (field === "time_s" ? row.interval_high_s : null)      // of a range its upper end
  if (one !== other) return compared(value(one), value(other), sign) || one.index - other.index
  return Boolean(b.members) - Boolean(a.members) || compared(value(a), value(b), sign) || a.index - b.index
}
function compared(x, y, sign) {
  const unknown = v => v === null || v === undefined || v === ""
  if (unknown(x) || unknown(y)) return unknown(x) - unknown(y)
  return sign * (typeof x === "string" ? x.localeCompare(y, undefined, {numeric: true}) : x - y)
}

// Characters of a name; `fitNames` gives the names what the other columns leave of the frame.
let nameWidth = 25, longestName = 0, cutNames = false
// On a phone a name that needs more to be told apart loses its middle, since it would hide all other columns; where two
// are alike then, what is before their difference.
function nameText(row) {
  const width = nameWidth - (row.members ? 6 : 0), name = shortName(row, width)
  if (!cutNames || name.length <= width) return name
  const cut = middle(name, width, 0.4)
  const alike = [...short[width].values()].filter(other => middle(other, width, 0.4) === cut)
  return new Set(alike).size > 1 ? middle(fromDifference(name, alike, width), width, 0.4) : cut
}
function named(tr, row) {
  const label = tr.querySelector(".field-name [title]")
  if (label) label.textContent = nameText(row)
}
function fitNames() {
  const frame = at("scroller").classList
  frame.remove("roomy")
  cutNames = !wide()
  const shown = lines().map(tr => [tr, rowAt(Number(tr.dataset.index))])
  const longest = Math.max(14, ...shown.map(([, row]) => nameOf(row).length + (row.members ? 6 : 0)))
  const write = width => { nameWidth = width; for (const [tr, row] of shown) named(tr, row) }
  const left = last => {
    at("table").style.width = "min-content"          // titles take two lines
    const found = at("scroller").clientWidth - last.offsetLeft - last.offsetWidth - 2
    at("table").style.width = ""
    return found
  }
  // The longest names with which `last` is seen, between those that fit and those that do not; tells if there are any.
  const fit = (least, last) => {
    let low = least, high = Math.max(least, Math.min(longest, 50)), best = null
    const between = width => Math.max(low, Math.min(width, high))
    for (let tries = 0; tries < 6 && low <= high; tries++) {
      write(between(nameWidth))
      const room = left(last)
      if (room < 0) high = nameWidth - 1
      else { best = nameWidth; low = nameWidth + 1 }
      if (room >= 0 && room < 7) break
      if (low <= high) nameWidth = between(nameWidth + Math.floor(room / 6.5))
    }
    write(best ?? least)
    return best !== null
  }
  const titles = at("table").tHead.querySelectorAll("th"), use = [...at("table").querySelectorAll("th[class*=field-utilization]")].at(-1)
  const beside = shownColumns().some(c => ["type", "operator"].includes(c.field))
  const shortest = beside ? 16 : longest > 30 ? 20 : shown.some(([, row]) => row.members) ? 18 : Math.min(longest, 16)
  const last = [...titles].at(-1), least = Math.min(26, Math.ceil(0.8 * longest))    // a bar for less would hide less
  if (!wide()) [...titles].slice(Math.min(2, titles.length - 1)).reverse().some(title => fit(shortest, title))
  else if (!fit(least, last) && !fit(14, last) && !(use && fit(14, use))) write(Math.min(30, longest))
  longestName = longest
  frame.add("roomy")                                  // whole types, where all columns leave room for them
  if (left(last) < 0) frame.remove("roomy")
}
function nameCell(row) {
  const text = nameOf(row)
  const label = element("span", {textContent: nameText(row), title: text})
  const mark = spared.has("phase") ? phaseMark(row) : ""
  if (!row.members) return mark ? element("span", {}, label, element("span", {className: "count", textContent: mark})) : label
  const fold = element("span", {className: "fold", ariaHidden: true})
  return element("span", {}, fold, label, element("span", {className: "count", textContent: `${mark} ×${row.members.length}`}))
}
// Such a text loses its middle where it is too long, since its end often tells more than its start. CSS shows one of the
// two; the whole one stays in the document.
const cutInTheMiddle = new Set(["type", "operator", "category", "layer", "kind", "model"])
function bothEnds(text, most = 11) {
  const said = text.replace(/^aten::/, ""), made = element("span", {className: "ends", textContent: text, title: text})
  Object.assign(made.dataset, {brief: middle(said, most, 0.4), long: middle(said, 48, 0.5)})
  return made
}
// Of layers and kinds as much is seen as tells them apart, since no name says it.
function briefLength(field) {
  const texts = ["layer", "kind"].includes(field) ? [...new Set(rows.map(r => String(r[field] ?? "")))] : []
  let most = 11
  while (most < 20 && new Set(texts.map(t => middle(t, most, 0.4))).size < texts.length) most++
  return most
}
const tones = {faster: r => r < 0.97, slower: r => r > 1.03}
function cell(c, row) {
  if (c.field === "name") return nameCell(row)
  const upper = c.field === "time_s" && row.time_s === null && row.interval_high_s       // of a range
  const text = upper ? `≤ ${write(upper, c.format, c.unit)}` : write(row[c.field], c.format, c.unit)
  const tone = c.field === "time_ratio" && row.clear ? Object.keys(tones).find(k => tones[k](row[c.field])) : ""
  if (cutInTheMiddle.has(c.field) && text.length > 11) return bothEnds(text, briefLength(c.field))
  return element("span", {textContent: text, title: c.text ? text : "", className: tone ?? ""})
}

// Short on a phone, where it would take the width of names.
const titleOf = c => !wide() && c.title === "utilization" ? "util." : c.title
function column(c) {
  const type = `row-${c.field}`, {order} = DataTable.ext.type
  order[`${type}-asc`] = (a, b) => inOrder(a, b, c.field, 1)
  order[`${type}-desc`] = (a, b) => inOrder(a, b, c.field, -1)
  return {title: element("span", {textContent: titleOf(c)}).innerHTML, type,
          className: `field-${c.field.replace(/\W/g, "-")} ${c.text ? "text" : "number"}`,
          orderSequence: c.text ? ["asc", "desc"] : ["desc", "asc"],
          data: (row, type) => type === "display" ? cell(c, row) : type === "filter" ? "" : row}
}

function drawTable() {
  table?.destroy()
  const shown = shownColumns(), [field, direction] = state.sort ?? tab.sort ?? []
  const sorted = shown.findIndex(c => c.field === field)
  at("scroller").replaceChildren(element("table", {id: "table", className: "compact"}))
  table = new DataTable("#table", {
    data: [], columns: shown.map(column), paging: false, autoWidth: false,
    layout: {topStart: null, topEnd: null, bottomStart: null, bottomEnd: null},
    order: sorted < 0 ? [] : [[sorted, direction]], language: {emptyTable: "No rows", zeroRecords: "No rows"},
    createdRow: (tr, row) => { tr.dataset.index = row.index; tr.tabIndex = -1 }, rowCallback: mark})
  table.search.fixed("listed", (_, row) => listed.has(row.index))
  table.rows.add([...rows, ...groups].sort((a, b) => tab.sort ? inOrder(a, b, tab.sort[0], -1) : 0))
  const own = table
  table.on("order", () => {
    if (own !== table) return                             // of a table that another has replaced meanwhile
    const [first] = table.order(), sort = first?.[1] ? [shown[first[0]].field, first[1]] : null
    state.sort = String(sort) === String(tab.sort) ? null : sort
    remember()
  })
  const body = table.table().body()
  body.addEventListener("click", e => clicked(e.target.closest("tr[data-index]"), e.target))
  body.addEventListener("keydown", pressedKey)
  at("table").tHead.querySelectorAll("th").forEach((th, i) => {
    th.title = shown[i].meaning ?? ""
    const title = titleOf(shown[i])
    th.style.minWidth = `max(${title.length > 2 ? 3 : 1.6}rem, ${0.95 * titleWidth(title, wide() && title.length < 26 ? 2 : 3)}ch + 1.25rem)`
  })
}

// Characters of the longest line of a title over so many lines; a word needs no room made.
function titleWidth(title, most) {
  const words = title.split(" ").map(w => w.length)
  const lines = width => words.reduce(([n, used], w) => used + 1 + w <= width ? [n, used + 1 + w] : [n + 1, w], [0, Infinity])[0]
  let width = Math.max(...words)
  while (lines(width) > most) width++
  return words.length > 1 ? width : 0
}

function mark(tr, row) {
  named(tr, row)
  const chosen = state.row === row.index
  tr.classList.toggle("chosen", chosen)
  tr.classList.toggle("member", Boolean(row.under))
  tr.classList.toggle("group", Boolean(row.members))
  tr.setAttribute("aria-selected", chosen)
  if (row.members) tr.setAttribute("aria-expanded", state.open.has(row.index))
}

const lineOf = index => at("table").querySelector(`tr[data-index="${index}"]`)
const lines = () => [...table.table().body().querySelectorAll("tr[data-index]")]

function clicked(tr, target) {
  if (!tr) return
  const index = Number(tr.dataset.index)
  if (target.closest(".fold")) unfold(index); else choose(index)
}

// One row can be reached with the tab key: the chosen one, else the first. From there the arrows lead on.
function reachable() {
  for (const tr of lines()) tr.tabIndex = -1
  const first = state.row === null ? null : lineOf(state.row)
  const target = first ?? lines()[0]
  if (target) target.tabIndex = 0
}
function pressedKey(e) {
  const all = lines(), here = all.indexOf(e.target.closest("tr[data-index]")), index = Number(all[here]?.dataset.index)
  const to = {ArrowDown: here + 1, ArrowUp: here - 1, PageDown: here + 10, PageUp: here - 10,
              Home: 0, End: all.length - 1}[e.key]
  if (here < 0) return
  const group = rowAt(index).members && {ArrowRight: !state.open.has(index), ArrowLeft: state.open.has(index)}[e.key]
  if (to !== undefined) choose(Number(all[Math.max(0, Math.min(all.length - 1, to))].dataset.index))
  else if (group) unfold(index)
  else if (e.key === "Enter" || e.key === " ") choose(index)
  else if (e.key === "Escape") choose(null)
  else return
  e.preventDefault()
  lineOf(state.row ?? index)?.focus({preventScroll: true})
}

// A menu of all columns, with three choices of many.
function columnMenu() {
  const boxes = tab.columns.map(c => {
    const checked = shownColumns().includes(c), disabled = checked && shownColumns().length === 1    // one stays
    const box = element("input", {type: "checkbox", value: c.field, checked, disabled})
    return element("label", {title: c.meaning ?? ""}, box, ` ${c.title}`)
  })
  const set = fields => {
    if (fields) state.columns[tab.name] = fields; else delete state.columns[tab.name]
    columnsChanged()
  }
  const preset = (text, fields) => element("button", {type: "button", textContent: text, onclick: () => set(fields)})
  const presets = [preset("default", undefined), preset("all", tab.columns.map(c => c.field))]
  if (tab.xprof?.length) presets.push(preset("XProf", tab.xprof))
  at("columns").parentElement.querySelector("summary").textContent = `columns ${shownColumns().length} of ${tab.columns.length}`
  const list = element("div", {className: "boxes"}, ...boxes)
  list.onchange = () => set([...list.querySelectorAll("input:checked")].map(b => b.value))
  at("columns").replaceChildren(element("div", {className: "presets"}, ...presets), list)
}
function columnsChanged() {
  drawTable()
  columnMenu()
  refresh()
}

// The rows of the table as CSV, with every column, in base units.
function csvField(v) {
  if (v === null || v === undefined) return ""
  if (v === Infinity) return "inf"
  return /[",\r\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : v
}
function csv() {
  const listed = table.rows({search: "applied", order: "applied"}).data().toArray()
  const shown = listed.filter(r => !state.open.has(r.index))
  const header = tab.columns.map(c => csvField(c.unit ? `${c.field} [${c.unit}]` : c.field))
  const records = [header, ...shown.map(r => tab.columns.map(c => csvField(r[c.field])))]
  const text = records.map(r => r.join(",") + "\n").join("")
  const href = URL.createObjectURL(new Blob([text], {type: "text/csv"}))
  const link = element("a", {href, download: `${data.file}-${tab.name}.csv`})
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
}
