"""Run every benchmark: ``make bench``."""

from benchmarks import ground_floor, microstructure, rendering, simulation, training

if __name__ == "__main__":
    ground_floor.main()
    simulation.main()
    microstructure.main()
    training.main()
    rendering.main()
