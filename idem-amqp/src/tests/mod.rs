mod in_ci;
