"""Files as Nsight Compute prints them, written here: the layout is the tool's, the kernels and their numbers are
worked by hand. No counter of FLOPs is in any of them, as in a collection without `--set roofline`."""
from pathlib import Path

ids = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
       "Device", "CC"]
details = ids + ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
rules = ["Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]
metrics_section = "Command line profiler metrics"

def line(cells): return ",".join('"' + str(c).replace('"', '""') + '"' for c in cells)

def page(process, kernel, block, grid, cc, metrics, section=metrics_section, more=()):
    "The details page of one launch: (metric, unit, value) each, then rows as they are given."
    who = [0, 4242, process, "127.0.0.1", kernel, 1, 7, block, grid, 0, cc]
    return [line(details), *(line([*who, section, *m]) for m in metrics), *more]

before = ["==PROF== Connected to process 4242 (C:\\work\\kernels.exe)", "==PROF== Disconnected from process 4242",
          "device: a GPU of compute capability 12.0, 48 SMs, 2.5 GHz", "measured: 30.00 TFLOP/s, 600.0 GB/s",
          "wrote 3 rows, 1 file"]

def saxpy(folder):
    """y = a·x + y over 2²² floats: byte order mark, text of the program before the table, grouped digits. Loads
    2 · 2²² · 4 B = 1,048,576 sectors of 32 B, stores 524,288; DRAM reads both arrays and has half of y written
    back."""
    metrics = [("dram__bytes_op_read.sum", "byte", "33,554,432"), ("dram__bytes_op_write.sum", "byte", "8,388,608"),
               ("gpu__time_duration.sum", "ns", "80,000"),
               ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "", "262,144"),
               ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "1,048,576"),
               ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", "524,288"),
               ("lts__t_sector_hit_rate.pct", "%", "33.33"),
               ("smsp__thread_inst_executed_per_inst_executed.ratio", "", "32")]
    rows = page("kernels.exe", "unnamed>::saxpy_kernel(float, const float *, float *, int)", "(256, 1, 1)",
                "(16384, 1, 1)", "12.0", metrics)
    path = Path(folder)/"saxpy.csv"
    path.write_text("\n".join([*before, *rows]) + "\n", encoding="utf-8-sig")
    return path

def gemm_tiled(folder):
    """A product of two 1024 × 1024 matrices in tiles of 32, in the same form as `saxpy`. Every element is loaded
    1024 / 32 times: 2 · 2²⁰ · 32 · 4 B = 8,388,608 sectors; the result is stored once, 131,072 sectors."""
    metrics = [("dram__bytes_op_read.sum", "byte", "8,388,608"), ("dram__bytes_op_write.sum", "byte", "4,194,304"),
               ("gpu__time_duration.sum", "ns", "2,500,000"),
               ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "8,388,608"),
               ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", "131,072"),
               ("lts__t_sector_hit_rate.pct", "%", "96.88")]
    kernel = "void unnamed>::gemm_tiled_kernel<32>(const float *, const float *, float *, int)"
    path = Path(folder)/"gemm_tiled.csv"
    path.write_text("\n".join([*before, *page("kernels.exe", kernel, "(32, 32, 1)", "(32, 32, 1)", "12.0", metrics)]) +
                    "\n", encoding="utf-8-sig")
    return path

def fp8_gemm(folder):
    """A product of float8 matrices on compute capability 10.0: sections with labels instead of metrics, rows of
    rules, no separators in numbers."""
    light = [("DRAM Frequency", "hz", "4000000000.00"), ("SM Frequency", "hz", "1250000000.50"),
             ("Elapsed Cycles", "cycle", "500000"), ("Memory Throughput", "%", "21.68"),
             ("Duration", "ns", "400000"), ("L2 Cache Throughput", "%", "15.12")]
    kernel, launch = "sm100_tensorop_gemm_f8_f8_f32_f16_f16_64x256x128", [("Block Size", "", "384"),
                                                                          ("Cluster Scheduling Policy", "",
                                                                           "PolicySpread"),
                                                                           ("Waves Per SM", "", "1.95")]
    who = [0, 4242, "gemm", "127.0.0.1", kernel, 1, 7, "(384, 1, 1)", "(9, 32, 1)", 0, "10.0"]
    rule = line([*who, "LaunchStats", "", "", "", "LaunchConfiguration", "OPT",
                 'A "wave" of blocks, and a part of one.', "global", "50"])
    rows = [line(details + rules), *(line([*who, "GPU Speed Of Light Throughput", *m]) + "," for m in light),
            *(line([*who, "Launch Statistics", *m]) + "," for m in launch), rule]
    path = Path(folder)/"fp8_gemm.log"
    path.write_text("\n".join(["==PROF== Connected to process 4242 (/opt/gemm)",
                               "2208    2048    5608    0       400.0     126.8", *rows]) + "\n")
    return path

def all_of(folder): return {make.__name__: make(folder) for make in (saxpy, gemm_tiled, fp8_gemm)}
