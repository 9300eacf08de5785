// A plugin of another build of loramux.
struct Plugin {
  const char* version;
};

const struct Plugin* loramux_cuda_plugin(void) {
  static const struct Plugin plugin = {"0.0.0-other"};
  return &plugin;
}
