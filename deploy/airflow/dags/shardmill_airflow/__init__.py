"""The modules of the DAGs. They need Airflow 3 and not Shardmill."""
