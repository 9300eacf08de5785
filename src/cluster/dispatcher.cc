#include "cluster/dispatcher.h"
