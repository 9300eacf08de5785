#include "cluster/route_policy.h"
