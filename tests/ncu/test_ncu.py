"""Reports of Nsight Compute in every form. The files are written by this test from the documented layouts, with
one content; only how it is written differs. Real files are read where the shared folder holds them."""
import csv, io, itertools, math, tempfile, warnings
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import ncu_files
from conftest import heavy, heavy_only, nightly, shared, shared_file
from ncu_files import line
from fasterbench.roofs.point import RooflinePoint
from fasterbench.ncu.ncu import missing_command, read_ncu
from fasterbench.views.table import summary

S = "sass_thread_inst_executed_op_"
# Metric → (kind of unit, value in base units for each of three kernels). Two decimals hold them in every unit.
metrics = {
    "gpu__time_duration.sum": ("time", (12_340_000, 5_670_000, 2_450_000)),                      # ns
    "sm__cycles_elapsed.avg.per_second": ("clock", (1_500_000_000, 1_500_000_000, 1_490_000_000)),
    "dram__cycles_elapsed.avg.per_second": ("clock", (2_610_000_000,) * 3),
    "dram__bytes_read.sum": ("bytes", (134_220_000, 52_110_000, 5_000_000)),
    "dram__bytes_write.sum": ("bytes", (43_630_000, 0, 1_230_000)),
    "dram__bytes.sum.peak_sustained": ("bytes", (1280, 1280, 1280)),
    "lts__t_bytes.sum": ("bytes", (250_000_000, 99_990_000, 7_770_000)),
    "l1tex__t_bytes.sum": ("bytes", (777_770_000, 123_450_000, 8_880_000)),
    f"sm__{S}ffma_pred_on.sum.peak_sustained": ("count", (6144, 6144, 6144)),
    f"smsp__{S}fadd_pred_on.sum": ("count", (1_234_567, 10, 0)),
    f"smsp__{S}fmul_pred_on.sum": ("count", (7_654_321, 20, 0)),
    f"smsp__{S}ffma_pred_on.sum": ("count", (987_654_321, 300, 0)),
    "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum": ("count", (0, 4_000_000_000, 0)),
    "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum.peak_sustained": ("count", (49152, 49152, 49152)),
    # of no use, and a number all the same
    "lts__t_sector_hit_rate.pct": ("percent", (33.26, 87.5, 0.74)),
}
kernels = ["void unnamed>::saxpy<float, 4>(const float *, float *, int)", "ampere_bf16_s16816gemm_bf16_128x64",
           'reduce("x", y)']
layers = ["encoder.0.act", "encoder.0.fc1", ""]

units = dict(base_old=dict(time=(0, "nsecond"), clock=(0, "cycle/second"), bytes=(0, "byte")),
             base_new=dict(time=(0, "ns"), clock=(0, "hz"), bytes=(0, "byte")),
             auto_old=dict(time=(6, "msecond"), clock=(9, "cycle/nsecond"), bytes=(6, "Mbyte")),
             auto_new=dict(time=(3, "us"), clock=(9, "Ghz"), bytes=(6, "Mbyte")))
locales = dict(C=("", "."), en=(",", "."), de=(".", ","), fr=("\u202f", ","), plain_comma=("", ","))
read_locales, encodings = ["C", "en"], ["utf-8", "utf-8-sig"]
noises = ["none", "around", "between"]

def written(x, group, decimal, digits):
    "A number as a locale writes it."
    whole, _, rest = f"{x:.{digits}f}".partition(".")
    if group: whole = f"{int(whole):,}".replace(",", group)
    return whole + (decimal + rest if rest else "")

def cell(name, i, unit, locale):
    "Unit and value of a metric for kernel `i`."
    kind, values = metrics[name]
    power, text = units[unit].get(kind, (0, {"percent": "%"}.get(kind, "")))
    if kind == "bytes" and "peak" in name: power, text = 0, "byte/cycle"
    whole = power == 0 and kind != "percent"
    return text, written(values[i] / 10**power, *locales[locale], 0 if whole else 2)

nvtx = [f"{kind}_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
        for kind in ("thread Domain:Push/Pop", "Id:Domain:Start/Stop")]
def who(i, ranges):
    "The cells that say which launch a row is of."
    pushed = [f'"<default domain>:{name}:none:none:none:none:none:none" ' for name in ("(model)", layers[i])
              if layers[i]]
    where = ["  ".join(["4711", *pushed]), ""] if ranges else []
    return [i, 4711, "synthetic", "127.0.0.1", *where, kernels[i], 1, 7, "(256, 1, 1)", f"({i + 1}, 1, 1)", 0, "8.0"]
def ids(ranges):
    where = nvtx if ranges else []
    return ["ID", "Process ID", "Process Name", "Host Name", *where, "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC"]

def details(unit, locale, ranges, rules):
    more = rules * ["Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]
    rows = [line(ids(ranges) + ["Section Name", "Metric Name", "Metric Unit", "Metric Value"] + more)]
    for i in range(3):
        rows += [line([*who(i, ranges), "Command line profiler metrics", name, *cell(name, i, unit, locale)]) +
                 rules * "," for name in metrics]
        rows += [line([*who(i, ranges), "LaunchStats", "", "", "", "LaunchConfiguration", "OPT",
                       'A wave, of "blocks".', "global", "50"])] * rules
        rows += [line([*who(i, ranges), "Launch Statistics", "Cluster Scheduling Policy", "", "PolicySpread"])]
        rows += [line([*who(i, ranges), "Memory", "Mem Busy", "", "n/a"])]
    return rows

def raw(unit, locale, ranges, rules):
    blank = [""] * len(ids(ranges))
    return [line(ids(ranges) + list(metrics) + ["launch__cluster_scheduling_policy"]),
            line(blank + [cell(n, 0, unit, locale)[0] for n in metrics] + [""]),
            *(line(who(i, ranges) + [cell(n, i, unit, locale)[1] for n in metrics] + ["PolicySpread"])
              for i in range(3))]

def summary_page(unit, locale, ranges, rules):
    head = ["Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size", "Device", "CC",
            "Invocations"]
    rows = [line(head + ["Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"])]
    for i in range(3):
        for name in metrics:
            text, value = cell(name, i, unit, locale)
            kernel = [4711, "synthetic", "127.0.0.1", kernels[i], "(256, 1, 1)", f"({i + 1}, 1, 1)", 0, "8.0", 1]
            rows.append(line([*kernel, "Command line profiler metrics", name, text, value, value, value]))
    return rows

pages = dict(details=details, raw=raw, summary=summary_page)

def noisy(rows, noise):
    before = ['==PROF== Connected to process 4711 (/usr/bin/synthetic)', 'loss is "0.5, lr 1e-3, step 1, of 9',
              "device: x, 48 SMs, 2.625 GHz, 1,234.5 of it",
              '"quoted", said a program, "and", more', ""]
    after = ["==WARNING== No kernels were profiled in process 4712.", "==PROF== Disconnected from process 4711",
             "1, 2, three, 4, 5"]
    if noise == "none": return rows
    if noise == "around": return before + rows + after
    return before + [l for k, row in enumerate(rows) for l in (row, *([f"step {k}: \"1.0\", 2, 3, 4",
                                                                       "==PROF== Profiling"] if k > 1 else []))] + after

def report(tmp_path, page, encoding="utf-8", locale="C", unit="base_new", ranges=False, rules=False, noise="none"):
    path = tmp_path/"report.csv"
    path.write_bytes(("\n".join(noisy(pages[page](unit, locale, ranges, rules), noise)) + "\n").encode(encoding))
    return path

def read(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_ncu(path, **options)

def same(a, b):
    "Two points, up to what a division by a power of ten rounds."
    def close(x, y):
        if isinstance(x, float) and isinstance(y, (int, float)): return math.isclose(x, y, rel_tol=1e-12)
        return len(x) == len(y) and all(map(close, x, y)) if isinstance(x, tuple) and isinstance(y, tuple) else x == y
    return all(close(getattr(a, f.name), getattr(b, f.name)) for f in fields(RooflinePoint))

def test_the_content_by_hand(tmp_path):
    gemm = next(p for p in read(report(tmp_path, "raw")) if "gemm" in p.name)
    # 10 + 20 + 2·300 FP32, 4e9 on tensor cores; 52.11 MB of DRAM in 5.67 ms; 49152 · 1.5 GHz = 73.7 Top/s
    assert gemm.flops == 4_000_000_630 and math.isclose(gemm.time_s, 5.67e-3) and gemm.dtype == "bfloat16"
    assert gemm.bytes_by_level == (("L1", 123_450_000 - 99_990_000), ("L2", 99_990_000 - 52_110_000),
                                   ("DRAM", 52_110_000))
    # roofs: 6144 · 2 · 1.5 GHz = 18.4 TFLOP/s; 1280 B · 2.61 GHz = 3.34 TB/s
    peaks = read(report(tmp_path, "raw")).peaks
    assert peaks.peak_flops == 6144 * 2 * 1.5e9 and peaks.peak_bandwidth == 1280 * 2.61e9
    assert [c.flops for c in peaks.ceilings] == [6144 * 2 * 1.5e9, 49152 * 1.5e9]

@heavy_only("reads large files of others")
def test_every_form_gives_the_same_points(tmp_path):
    expected, forms = read(report(tmp_path, "raw")), 0
    for form in itertools.product(pages, encodings, read_locales, units, (False, True), (False, True), noises):
        page, *_, ranges, rules, _ = form
        if page == "summary" and ranges or page != "details" and rules: continue        # those pages have none
        got = read(report(tmp_path, *form))
        assert len(got) == 3 and all(map(same, got, expected)), form
        forms += 1
    assert forms == 2 * 2 * 4 * 3 * (2 * 2 + 2 + 1)

@pytest.mark.parametrize("page", pages)
@pytest.mark.parametrize("locale", ["de", "fr", "plain_comma"])
def test_numbers_of_another_locale_are_refused_with_the_command(tmp_path, page, locale):
    says = (r"line \d+: '\S+' is written neither as 1234\.5 nor as 1,234\.5; "
            r".*LC_ALL=C ncu --import .* --print-units base")
    with pytest.raises(ValueError, match=says): read(report(tmp_path, page, locale=locale))

@pytest.mark.parametrize("page", pages)
def test_other_encodings_are_refused_with_the_command(tmp_path, page):
    with pytest.raises(ValueError, match="line 1: no text in UTF-8; LC_ALL=C ncu --import"):
        read(report(tmp_path, page, encoding="utf-16"))

# ---- what cannot be

def two_gpus(tmp_path, second, **names):
    """A copy of 200 MB on an L40S at 864 GB/s, and on a second GPU; the roofs of both from cycles and clocks."""
    units = {"gpu__time_duration.sum": "ns", "dram__bytes.sum": "byte", "dram__bytes.sum.peak_sustained": "byte/cycle",
             "dram__cycles_elapsed.avg.per_second": "hz", f"sm__{S}ffma_pred_on.sum.peak_sustained": "inst/cycle",
             "sm__cycles_elapsed.avg.per_second": "hz"} | {f"smsp__{S}{op}_pred_on.sum": "inst"
                                                           for op in ("fadd", "fmul", "ffma")}
    first = [300_000, 200_000_000, 96, 9e9, 18176, 2.5e9, 0, 0, 1000]
    head = ["ID", "Kernel Name", "Device", "CC", *names, *units]
    rows = [head, [""] * (4 + len(names)) + [*units.values()],
            [0, "copy", 0, "8.9", *(n[0] for n in names.values()), *first],
            [1, "copy", 1, "8.9", *(n[1] for n in names.values()), *second]]
    path = tmp_path/"two.csv"
    path.write_text("\n".join(map(line, rows)) + "\n")
    return path

l4, l40s = [800_000, 200_000_000, 48, 6.25e9, 7424, 2.0e9, 0, 0, 1000], [310_000, 200_000_000, 96, 9e9, 18176, 2.4e9,
                                                                         0, 0, 1000]

@pytest.mark.parametrize("by", ["launch", "kernel", "nvtx"])
def test_two_gpus_of_one_compute_capability(tmp_path, by):
    with pytest.raises(ValueError, match="GPUs 0, 1, which are different .roofs that differ.; ncu --devices"):
        read(two_gpus(tmp_path, l4), by=by)
    assert len(read(two_gpus(tmp_path, l40s), by="launch")) == 2           # two of one product have the same roofs
    names = {"device__attribute_display_name": ["NVIDIA L40S", "NVIDIA L40"]}
    with pytest.raises(ValueError, match="NVIDIA L40, NVIDIA L40S"): read(two_gpus(tmp_path, l40s, **names), by=by)

def test_counters_that_contradict_one_another_are_refused_with_the_line(tmp_path):
    head = ["ID", "Kernel Name", "CC", "gpu__time_duration.sum", "dram__bytes.sum", "dram__bytes_read.sum",
            "dram__bytes_write.sum"]
    rows = [head, [""] * 3 + ["ns"] + ["byte"] * 3, [0, "k", "8.0", 1000, 12_000_000, 8_000_000, 4_000_000],
            [1, "k", "8.0", 1000, 5, 8_000_000, 4_000_000]]
    (tmp_path/"r.csv").write_text("\n".join(map(line, rows)))
    for ask in (read, missing_command):
        with pytest.raises(ValueError, match="line 4: dram__bytes and dram__bytes_read .* differ by a factor of 2.4e"):
            ask(tmp_path/"r.csv")

@pytest.mark.parametrize("page", pages)
def test_a_row_behind_other_text_is_refused_with_the_command(tmp_path, page):
    "Each row of the table in turn, so that none is left out in silence."
    path = report(tmp_path, page)
    lines = path.read_text().splitlines(keepends=True)
    for k in range(1, len(lines)):
        path.write_text("".join([*lines[:k], f"step {k}, loss 0.5: {lines[k]}", *lines[k + 1:]]))
        with pytest.raises(ValueError, match=rf"line {k + 1}: .*LC_ALL=C ncu --import"): read(path)

@pytest.mark.parametrize("page", ["details", "raw"])
def test_ranges_are_layers(tmp_path, page):
    rows = read(report(tmp_path, page, ranges=True, rules=True), by="nvtx")
    assert [p.name for p in rows] == ["encoder.0.act", "encoder.0.fc1", "(no range)"]

def test_a_file_of_2020_lacks_columns(tmp_path):
    keep = [i for i, name in enumerate(ids(False)) if name not in ("Block Size", "Grid Size", "Device", "CC")]
    rows = list(csv.reader(io.StringIO("\n".join(details("base_old", "en", False, False)))))
    (tmp_path/"old.csv").write_text("\n".join(line([r[i] for i in keep] + r[len(ids(False)):]) for r in rows))
    got, expected = read(tmp_path/"old.csv"), read(report(tmp_path, "raw"))
    assert [(p.name, p.flops, p.bytes_moved) for p in got] == [(p.name, p.flops, p.bytes_moved) for p in expected]

def test_an_undecidable_file_is_refused(tmp_path):
    rows = [ids(False) + ["dram__bytes.sum", "gpu__time_duration.sum"], [""] * 11 + ["byte", "us"], who(0, False) +
            ["1,234", "5"]]
    (tmp_path/"r.csv").write_text("\n".join(map(line, rows)))
    with pytest.raises(ValueError,
                       match=r"line 3: '1,234' is 1\.234 or 1234.*LC_ALL=C ncu --import .* --print-units base"):
        read(tmp_path/"r.csv")

# ---- real files, with the numbers that stand in them

def test_a_real_saxpy():
    """16,777,216 floats: 12 B each through L1, in 4,194,304 + 2,097,152 sectors of 32 B; through DRAM
    134,221,568 + 43,631,104 B."""
    found = read(shared_file("ncu", "saxpy.csv"))
    [p] = found
    assert (p.name, p.type) == ("unnamed>::saxpy_kernel(float, const float *, float *, int)",
                                "(65536, 1, 1)x(256, 1, 1)")
    assert math.isclose(p.time_s, 292928e-9) and p.flops is None and p.bound == "undefined"
    through = 16777216 * 12
    assert through == (4194304 + 2097152) * 32
    assert dict(p.bytes_by_level) == dict(L1=through - 177852672, DRAM=134221568 + 43631104)
    assert found.environment["numbers"] == "1,234.5" and found.environment["compute_capability"] == "12.0"
    assert found.model == "roofline_profiler.exe"

def test_a_real_product():
    "53,261,312 + 3,377,920 B through DRAM; 67,108,864 + 524,288 sectors through L1."
    [p] = read(shared_file("ncu", "gemm_tiled.csv"))
    assert math.isclose(p.time_s, 10195552e-9) and p.type == "(64, 64, 1)x(32, 32, 1)"
    assert dict(p.bytes_by_level) == dict(L1=67633152 * 32 - 56639232, DRAM=56639232)

def test_a_real_file_with_rules():
    found = read(shared_file("ncu", "cublaslt.log"))
    [p] = found
    assert math.isclose(p.time_s, 406240e-9) and (p.flops, p.bytes_moved, p.bytes_by_level) == (None, None, ())
    assert "f8_f8_f32" in p.name
    assert found.environment["numbers"] == "1234.5" and found.environment["compute_capability"] == "10.0"
    assert [n.split()[0] for n in found.notes] == ["FLOPs", "DRAM", "The", "roofs:"]
    assert "ffma2_pred_on" in missing_command(shared_file("ncu", "cublaslt.log"))

# ---- damaged files: a result, or a ValueError that says where

whole = {page: "\n".join(noisy(make("auto_new", "en", page != "summary", page == "details"), "around")).encode()
         for page, make in pages.items()}
with tempfile.TemporaryDirectory() as written_here:
    whole |= {name: path.read_bytes() for name, path in ncu_files.all_of(written_here).items()}
whole |= {p.name: p.read_bytes() for p in sorted((shared/"data"/"ncu").glob("*.[cl]*"))}
of_the_file = ("holds no table", "has no metric", "is a binary report")     # what is not on one line

def survives(path):
    try: found = read(path)
    except ValueError as error:
        assert "line " in str(error) or any(part in str(error) for part in of_the_file), error
        return
    assert all(isinstance(p, RooflinePoint) for p in found)
    found.to_json(), found.csv(), summary(found), read(path, by="kernel"), read(path, by="nvtx")

nasty = [b'"', b",", b"\n", b'""', b'","', b"\x00", b"-1", b"1e999", b"nan", b"1.234", b"byte", b"\xff\xfe", b"9" * 40,
         b"==PROF==\n"]
kinds = st.sampled_from(["cut", "drop", "insert", "repeat", "swap", "digit", "cell"])
edits = st.lists(st.tuples(kinds, st.integers(0, 1 << 16), st.integers(1, 400),
                           st.one_of(st.binary(max_size=12), st.sampled_from(nasty))), max_size=6)

def damaged(data, edits):
    data = bytearray(data)
    for how, at, n, text in edits:
        i = at % (len(data) + 1)
        if how == "cut": del data[i:]
        elif how == "drop": del data[i:i + n]
        elif how == "insert": data[i:i] = text
        elif how == "repeat": data[i:i] = data[i:i + n]
        elif how == "swap": data[i:i + n], data[:n] = data[:n], data[i:i + n]
        else:
            j = next((k for k in range(i, min(i + 400, len(data)))
                      if (data[k:k + 1].isdigit() if how == "digit" else data[k:k + 2] == b',"')), None)
            if j is not None: data[j:j + 1] = text if how == "digit" else b"," + text
    return bytes(data)

@settings(max_examples=9000 if nightly else 300 if heavy else 100, deadline=None, database=None,
          suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(whole)), edits, st.sampled_from(["utf-8", "utf-16"]))
def test_damaged_reports(tmp_path_factory, name, edits, encoding):
    path = folder(tmp_path_factory)/"damaged.csv"
    data = damaged(whole[name], edits)
    path.write_bytes(data if encoding == "utf-8" else data.decode("utf-8", "replace").encode("utf-16"))
    survives(path)

@settings(max_examples=2000 if nightly else 100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=2000))
def test_any_bytes(tmp_path_factory, data):
    path = folder(tmp_path_factory)/"bytes.csv"
    path.write_bytes(data)
    survives(path)

made = []
def folder(factory):
    if not made: made.append(factory.mktemp("damaged"))
    return made[0]
