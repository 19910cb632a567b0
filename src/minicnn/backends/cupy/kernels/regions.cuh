// Row-wise regions: rows of bytes or of floats that they begin with, and threads that join what they have.
#pragma once
#include "bytes.cuh"
#include "floats.cuh"
