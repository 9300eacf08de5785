#include "cluster/prefix_blocks.h"
