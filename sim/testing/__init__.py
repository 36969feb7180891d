"""Models of what surrounds a unit under test, as testbenches of Amaranth's simulator."""
