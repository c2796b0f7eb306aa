// Translates the settings of the C ABI, names and texts, to those of the rooms below.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/log.h"
#include "capi/farandole.h"
#include "collective/knobs.h"
#include "engine/engine.h"
#include "transport/endpoint.h"

namespace farandole::capi {

struct Settings {
  transport::EndpointSettings endpoint;
  engine::EngineSettings engine;
  backend::StartSettings start;
  std::optional<base::Level> log_level;  // none: it stays as it is
  bool needs_shared_memory = false;      // rather fail than use TCP within a host
};

// Settings that are not given have their defaults; of several with one name, the last one counts. Throws
// Error(kInvalidArgument) for a name that does not exist, and for a text that is not a value of its setting.
Settings read_settings(std::span<const farandole_setting> given);

// Sets the knobs in "NAME=VALUE,...". Throws as read_settings does.
void read_knobs(const std::string& text, collective::Knobs& knobs);

// All names, as a JSON array.
std::string setting_names();

}  // namespace farandole::capi
