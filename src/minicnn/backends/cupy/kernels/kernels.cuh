// All kernels but the chains.
#pragma once
#include "products.cuh"
#include "tensor.cuh"
#include "tensor_products.cuh"
