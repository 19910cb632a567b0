"""Plans and steps of the CUDA engines, in no language: fusion, tiles, places, launches, and the runtime they need."""
