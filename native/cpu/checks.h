// The checks of lpq/checks.h, which every backend shares.
#pragma once
#include "lpq/checks.h"
