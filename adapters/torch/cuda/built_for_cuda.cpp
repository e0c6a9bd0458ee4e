#include <cuda_runtime_api.h>

#include "adapters/torch/built_for.h"

LMS_STATE_BUILT_FOR(CUDART_VERSION);
