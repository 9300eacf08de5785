#include "cluster/server_snapshot.h"
