// nvidia-smi: what programs ask it, answered by the simulated libnvidia-ml. Beside the table it
// knows -L, -q, --query-gpu and --query-compute-apps with --format, -i and --version; what is no
// number of a simulated device is [N/A]. Anything else is refused by name.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

extern "C" {
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned*, void*);
int nvmlDeviceGetCount_v2(unsigned*);
int nvmlDeviceGetCudaComputeCapability(void*, int*, int*);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void**);
int nvmlDeviceGetMemoryInfo(void*, void*);
int nvmlDeviceGetName(void*, char*, unsigned);
int nvmlDeviceGetTemperature(void*, int, unsigned*);
int nvmlDeviceGetUUID(void*, char*, unsigned);
int nvmlDeviceGetUtilizationRates(void*, void*);
int nvmlInit_v2();
int nvmlSystemGetCudaDriverVersion(int*);
int nvmlSystemGetDriverVersion(char*, unsigned);
int nvmlSystemGetProcessName(unsigned, char*, unsigned);
}

namespace {
using std::string;
using Texts = std::vector<string>;

struct Application {
  unsigned pid;
  unsigned long long used;
};
struct Gpu {
  unsigned index;
  string name, uuid, bus, capability;
  unsigned long long total, free, used;  // in MiB
  unsigned celsius, utilization, memory_utilization;
  std::vector<Application> applications;
};

template <class... T>
string text(const char* format, T... values) {
  char out[512];
  snprintf(out, sizeof out, format, values...);
  return out;
}

Gpu gpu(unsigned index) {
  void* h = nullptr;
  char name[96] = "", uuid[96] = "";
  int major = 0, minor = 0;
  unsigned long long memory[3] = {};
  unsigned celsius = 0, rates[2] = {}, count = 0;
  nvmlDeviceGetHandleByIndex_v2(index, &h);
  nvmlDeviceGetName(h, name, sizeof name);
  nvmlDeviceGetUUID(h, uuid, sizeof uuid);
  nvmlDeviceGetCudaComputeCapability(h, &major, &minor);
  nvmlDeviceGetMemoryInfo(h, memory);
  nvmlDeviceGetTemperature(h, 0, &celsius);
  nvmlDeviceGetUtilizationRates(h, rates);
  std::vector<Application> applications;
  constexpr int INSUFFICIENT_SIZE = 7;
  while (nvmlDeviceGetComputeRunningProcesses(h, &count, applications.data()) == INSUFFICIENT_SIZE)
    applications.resize(count);
  applications.resize(count);  // Fewer, if one has ended meanwhile.
  return {index,
          name,
          uuid,
          text("00000000:%02X:00.0", index + 1),
          text("%d.%d", major, minor),
          memory[0] >> 20,
          memory[1] >> 20,
          memory[2] >> 20,
          celsius,
          rates[0],
          rates[1],
          applications};
}

string driver_version() {
  char version[96] = "";
  nvmlSystemGetDriverVersion(version, sizeof version);
  return version;
}
string cuda_version() {
  int version = 0;
  nvmlSystemGetCudaDriverVersion(&version);
  return text("%d.%d", version / 1000, version % 1000 / 10);
}
string now(const char* format) {
  char out[64];
  time_t seconds = time(nullptr);
  strftime(out, sizeof out, format, localtime(&seconds));
  return out;
}
string process_name(unsigned pid) {
  char name[256] = "[Not Found]";
  nvmlSystemGetProcessName(pid, name, sizeof name);
  return name;
}

Texts split(const string& list) {
  Texts parts;
  string part;
  for (char c : list + ",") {
    if (c == ',') {
      parts.push_back(part);
      part.clear();
    } else if (!isspace((unsigned char)c)) {
      part += c;
    }
  }
  return parts;
}

// A field of --query-gpu or --query-compute-apps, without its unit; `unit` becomes that.
string common(const Gpu& g, const string& field, string& unit) {
  unit.clear();
  if (field == "timestamp") return now("%Y/%m/%d %H:%M:%S.000");
  if (field == "name" || field == "gpu_name") return g.name;
  if (field == "uuid" || field == "gpu_uuid") return g.uuid;
  if (field == "pci.bus_id" || field == "gpu_bus_id") return g.bus;
  return "[N/A]";
}
string of_gpu(const Gpu& g, const string& field, string& unit) {
  unsigned count = 0;
  nvmlDeviceGetCount_v2(&count);
  if (field == "index") return text("%u", g.index);
  if (field == "count") return text("%u", count);
  if (field == "driver_version") return driver_version();
  if (field == "compute_cap") return g.capability;
  if (field == "pstate") return "P0";
  if (field == "temperature.gpu") return text("%u", g.celsius);
  unit = "MiB";
  if (field == "memory.total") return text("%llu", g.total);
  if (field == "memory.used") return text("%llu", g.used);
  if (field == "memory.free") return text("%llu", g.free);
  if (field == "memory.reserved") return "0";
  unit = "%";
  if (field == "utilization.gpu") return text("%u", g.utilization);
  if (field == "utilization.memory") return text("%u", g.memory_utilization);
  return common(g, field, unit);
}
string of_application(const Gpu& g, const Application& a, const string& field, string& unit) {
  if (field == "pid") return text("%u", a.pid);
  if (field == "process_name" || field == "name") return process_name(a.pid);
  unit = "MiB";
  if (field == "used_memory" || field == "used_gpu_memory") return text("%llu", a.used >> 20);
  return common(g, field, unit);
}

// Rows of values; `value(i, field, unit)` is that of row `i`.
template <class Value>
void print_rows(size_t rows, const Texts& fields, const Texts& format, Value value) {
  bool header = true, units = true;
  for (const string& word : format) {
    header &= word != "noheader";
    units &= word != "nounits";
  }
  string line;
  for (const string& field : fields) {
    string unit;
    Gpu none{};
    Application nobody{};
    of_gpu(none, field, unit);
    if (unit.empty()) of_application(none, nobody, field, unit);
    line += (line.empty() ? "" : ", ") + field + (unit.empty() ? "" : " [" + unit + "]");
  }
  if (header) puts(line.c_str());
  for (size_t i = 0; i < rows; i++) {
    line.clear();
    for (const string& field : fields) {
      string unit, said = value(i, field, unit);
      line += (line.empty() ? "" : ", ") + said + (units && !unit.empty() ? " " + unit : "");
    }
    puts(line.c_str());
  }
}

void query_gpus(const std::vector<Gpu>& gpus, const Texts& fields, const Texts& format) {
  print_rows(gpus.size(), fields, format, [&](size_t i, const string& field, string& unit) {
    return of_gpu(gpus[i], field, unit);
  });
}
void query_applications(const std::vector<Gpu>& gpus, const Texts& fields, const Texts& format) {
  std::vector<std::pair<const Gpu*, Application>> all;
  for (const Gpu& g : gpus)
    for (const Application& a : g.applications)
      all.push_back({&g, a});
  print_rows(all.size(), fields, format, [&](size_t i, const string& field, string& unit) {
    return of_application(*all[i].first, all[i].second, field, unit);
  });
}

void list(const std::vector<Gpu>& gpus) {
  for (const Gpu& g : gpus)
    printf("GPU %u: %s (UUID: %s)\n", g.index, g.name.c_str(), g.uuid.c_str());
}

void describe(const std::vector<Gpu>& gpus) {
  auto row = [](int indent, const char* name, const string& value) {
    printf("%*s%-*s: %s\n", indent, "", 42 - indent, name, value.c_str());
  };
  printf("\n==============NVSMI LOG==============\n\n");
  row(0, "Timestamp", now("%a %b %e %H:%M:%S %Y"));
  row(0, "Driver Version", driver_version());
  row(0, "CUDA Version", cuda_version());
  printf("\n");
  row(0, "Attached GPUs", text("%zu", gpus.size()));
  for (const Gpu& g : gpus) {
    printf("GPU %s\n", g.bus.c_str());
    row(4, "Product Name", g.name);
    row(4, "GPU UUID", g.uuid);
    row(4, "Minor Number", text("%u", g.index));
    printf("    FB Memory Usage\n");
    row(8, "Total", text("%llu MiB", g.total));
    row(8, "Used", text("%llu MiB", g.used));
    row(8, "Free", text("%llu MiB", g.free));
    printf("    Utilization\n");
    row(8, "GPU", text("%u %%", g.utilization));
    row(8, "Memory", text("%u %%", g.memory_utilization));
    printf("    Temperature\n");
    row(8, "GPU Current Temp", text("%u C", g.celsius));
  }
}

void table(const std::vector<Gpu>& gpus) {
  const string line(89, '-'), left(41, '-'), middle(24, '-'), right(22, '-');
  auto rule = [&] {
    printf("+%s+%s+%s+\n", left.c_str(), middle.c_str(), right.c_str());
  };
  printf("%s\n+%s+\n", now("%a %b %e %H:%M:%S %Y").c_str(), line.c_str());
  printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n",
         driver_version().c_str(), driver_version().c_str(), cuda_version().c_str());
  printf("|%s+%s+%s|\n", left.c_str(), middle.c_str(), right.c_str());
  printf("| GPU  %-34s | %-22s | %20s |\n", "Name                 Persistence-M",
         "Bus-Id          Disp.A", "Volatile Uncorr. ECC");
  printf("| Fan  %-34s | %22s | %20s |\n", "Temp   Perf          Pwr:Usage/Cap", "Memory-Usage",
         "GPU-Util  Compute M.");
  printf("| %39s | %22s | %20s |\n", "", "", "MIG M.");
  printf("|%s+%s+%s|\n", string(41, '=').c_str(), string(24, '=').c_str(), string(22, '=').c_str());
  for (const Gpu& g : gpus) {
    string used = text("%lluMiB / %lluMiB", g.used, g.total);
    printf("| %3u  %-28.28s  Off  | %18s Off | %20s |\n", g.index, g.name.c_str(), g.bus.c_str(),
           "0");
    printf("| N/A  %3uC    P0               N/A / N/A | %22s | %6u%%      Default |\n", g.celsius,
           used.c_str(), g.utilization);
    printf("| %39s | %22s | %20s |\n", "", "", "Disabled");
    rule();
  }
  printf("\n+%s+\n| %-87s |\n| %-87s |\n|%s|\n", line.c_str(), "Processes:",
         " GPU              PID   Type   Process name                               GPU Memory",
         string(89, '=').c_str());
  bool any = false;
  for (const Gpu& g : gpus)
    for (const Application& a : g.applications) {
      any = true;
      string used = text("%lluMiB", a.used >> 20);
      string row = text("%4u  %15u      C   %-41.41s %11s", g.index, a.pid,
                        process_name(a.pid).c_str(), used.c_str());
      printf("| %-87s |\n", row.c_str());
    }
  if (!any) printf("| %-87s |\n", " No running processes found");
  printf("+%s+\n", line.c_str());
}
}  // namespace

int main(int count, char** arguments) {
  nvmlInit_v2();
  unsigned devices = 0;
  nvmlDeviceGetCount_v2(&devices);
  Texts fields, format, chosen;
  char mode = 0;
  for (int i = 1; i < count; i++) {
    string option = arguments[i], value;
    size_t equals = option.find('=');
    bool has_value = equals != string::npos;
    if (has_value) {
      value = option.substr(equals + 1);
      option.erase(equals);
    }
    auto is = [&](const char* a, const char* b) {
      return option == a || option == b;
    };
    if (is("-i", "--id") || option == "--format") {
      if (!has_value && i + 1 < count) value = arguments[++i];
      (option == "--format" ? format : chosen) = split(value);
    } else if (option == "--query-gpu" || option == "--query-compute-apps") {
      if (!has_value && i + 1 < count) value = arguments[++i];
      fields = split(value);
      mode = option == "--query-gpu" ? 'g' : 'a';
    } else if (is("-L", "--list-gpus")) {
      mode = 'L';
    } else if (is("-q", "--query")) {
      mode = 'q';
    } else if (option == "--version") {
      mode = 'v';
    } else {
      fprintf(stderr,
              "The nvidia-smi of the simulated device does not know %s: it has the table, -L, -q, "
              "--query-gpu and --query-compute-apps with --format, -i and --version.\n",
              arguments[i]);
      return 2;
    }
  }
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < devices; i++) {
    Gpu g = gpu(i);
    bool wanted = chosen.empty();
    for (const string& id : chosen)
      wanted |= id == text("%u", i) || id == g.uuid || id == g.bus;
    if (wanted) gpus.push_back(g);
  }
  if (gpus.empty()) {
    puts("No devices were found");
    return 6;
  }
  switch (mode) {
    case 'g': query_gpus(gpus, fields, format); break;
    case 'a': query_applications(gpus, fields, format); break;
    case 'L': list(gpus); break;
    case 'q': describe(gpus); break;
    case 'v': printf("NVIDIA-SMI version  : %s\n", driver_version().c_str()); break;
    default: table(gpus);
  }
  return 0;
}
